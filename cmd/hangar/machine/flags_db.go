package machine

import (
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// dbConfig is the path of the configuration of the node of replicated databases in a Machine.
const dbConfig = "/etc/litefs.yml"

// patchDB makes a node of replicated databases the main process, which runs the command as soon as the
// databases are ready. The program comes from the host, and the configuration is a file of the Machine.
func (f *configFlags) patchDB(p object, command []string) error {
	if f.db == "" {
		return nil
	}
	if len(command) == 0 {
		return cli.UsageErrorf("--db needs a command after --, which replaces the image's own")
	}
	content, err := os.ReadFile(f.db)
	if err != nil {
		return err
	}
	files, _ := p["files"].([]hangar.File)
	p["files"] = append(files, hangar.File{GuestPath: dbConfig, RawValue: content, Mode: 0o644})
	set(p, "init", "entrypoint", []string{hangar.DatabaseProgram, "mount", "--config", dbConfig, "--"})
	return nil
}
