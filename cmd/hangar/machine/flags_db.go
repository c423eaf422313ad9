package machine

import (
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// dbConfig is where a Machine has the configuration of its node of replicated databases.
const dbConfig = "/etc/litefs.yml"

// patchDB has the node of replicated databases be the main process, which runs the command as soon as the
// databases are there. The host has the program; the configuration is a file of the Machine.
func (f *configFlags) patchDB(p object, command []string) error {
	if f.db == "" {
		return nil
	}
	if len(command) == 0 {
		return cli.UsageErrorf("say after -- which command --db is to run: it takes the place of the image's own")
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
