package api

import (
	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// texts are descriptions of properties, by name.
type texts map[string]string

// describeProperties adds the descriptions of properties. It panics for a property that does not exist,
// so that no description outlives its property.
func describeProperties(s *openapi.Schemas) {
	openapi.Describe[router.Error](s, texts{
		"error":  "For people; it names the property or the parameter that is wrong.",
		"status": "The reason, for programs. The possible ones depend on the operation.",
		"code":   "The class of the error. It follows from the status code, and is more stable.",
	})
	openapi.Describe[hangar.Machine](s, texts{
		"name":        "Unique among the Machines of its App that exist.",
		"instance_id": "The current version: a new one with every update.",
		"private_ip":  "Its address in the network of its App.",
		"host_id":     "The server that it is on.",
		"cordoned":    "It gets no requests from the edge.",
		"nonce":       "The secret of the lease, when this request has made one.",
	})
	openapi.Describe[view.Machine](s, texts{
		"version":           "The older name of `instance_id`.",
		"config":            "As it was sent, with what was left out of `guest` filled in.",
		"incomplete_config": "Always null.",
		"host_status":       "`ok` while the server that it is on can be reached.",
		"events":            "The newest first.",
		"created_at":        "RFC 3339, whole seconds.",
		"updated_at":        "RFC 3339, whole seconds.",
	})
	openapi.Describe[machineRequest](s, texts{
		"name":                      "Of a new Machine: a generated one when it is left out. Of an update: must be the Machine's.",
		"region":                    "This server's when it is left out. It may also be `any`, a word for several regions, or a list separated by commas.",
		"current_version":           "For updates: refused with 412 unless it is the Machine's.",
		"skip_launch":               "Prepare the Machine, and leave it stopped.",
		"skip_service_registration": "Start it cordoned.",
	})
	openapi.Describe[hangar.MachineConfig](s, texts{
		"image":          "A reference with a tag, a digest or both. A tag is resolved once, when the config is sent.",
		"guest":          "How large the Machine is: `shared`, 1 CPU and 256 MB unless given.",
		"size":           "A preset such as `shared-cpu-2x`, instead of `guest`.",
		"metadata":       "Texts by which users distinguish Machines.",
		"auto_destroy":   "Destroy the Machine when its main process has ended and is not restarted.",
		"restart":        "What follows when the main process ends: `on-failure`, ten times within five minutes, unless given.",
		"stop_config":    "How it is asked to stop: SIGINT and five seconds before SIGKILL, unless given.",
		"persist_rootfs": "An older place of `rootfs.persist`.",
		"swap_size_mb":   "An older place of `init.swap_size_mb`.",

		"disable_machine_autostart": "An older place of `services[].autostart`.",
	})
	openapi.Describe[hangar.Mount](s, texts{
		"volume":                   "The id of a volume that no other Machine has.",
		"path":                     "Where: an absolute path.",
		"name":                     "In answers: the name of the volume.",
		"encrypted":                "In answers: whether the volume is.",
		"size_gb":                  "In answers: the size of the volume.",
		"extend_threshold_percent": "The volume grows by itself when more of it is used. 0: never.",
		"add_size_gb":              "By how much. Required with `extend_threshold_percent`.",
		"size_gb_limit":            "The size at which it stops growing. 0: the largest size of volumes.",
	})
	openapi.Describe[volumeRequest](s, texts{
		"name":                 "At most 30 characters of a-z, 0-9 and underscore. Several volumes may have the same one.",
		"region":               "When it is left out: the region of the source of the volume, or else of this server. It may also be `any`, a word for several regions, or a list separated by commas.",
		"size_gb":              "GiB, from 1 to 500: 3 when it is left out, or the size of what the volume is made from.",
		"encrypted":            "The default is true.",
		"fstype":               "`ext4`, or `raw` for none. The default is `ext4`.",
		"snapshot_retention":   "How many days snapshots are kept, from 1 to 60. The default is 5.",
		"auto_backup_enabled":  "Take a snapshot every day. The default is true.",
		"snapshot_id":          "The snapshot to restore: of any volume of the organization.",
		"source_volume_id":     "The volume to copy: any one of the organization.",
		"require_unique_zone":  "Every volume of a server has a zone of its own.",
		"unique_zone_app_wide": "Every volume of a server has a zone of its own.",
		"compute":              "The size of the Machine that will mount it. A server without room for the Machine is not chosen.",
		"compute_image":        "Accepted, without effect.",
		"machines_only":        "Accepted, without effect.",
	})
	openapi.Describe[view.Volume](s, texts{
		"state":               "A destroyed volume is `destroyed` or, in listings, `pending_destroy` while it can be undeleted.",
		"zone":                "Of hardware. Every volume of a server has its own.",
		"attached_machine_id": "The Machine whose config mounts it, whether it runs or not; null: none.",
		"attached_alloc_id":   "Always null.",
		"created_at":          "RFC 3339, milliseconds.",
		"updated_at":          "RFC 3339, milliseconds.",
		"blocks":              "Of the file system; 0 until a Machine has mounted it.",
		"block_size":          "Bytes.",
		"blocks_avail":        "Free blocks that are not reserved for root.",
		"fstype":              "What is on it; empty until a Machine has mounted it.",
		"wanted_fstype":       "The requested type.",
		"host_status":         "`ok` while the server that it is on can be reached.",
		"needs_restart":       "It is larger than its file system, which grows at the next start of the Machine.",
		"filling":             "While it is `restoring`: the source and the progress.",
		"undelete_until":      "Until then a destroyed volume can be undeleted, unless its room is needed earlier.",
	})
	openapi.Describe[view.Snapshot](s, texts{
		"size":        "What it added to the store, in bytes: compressed, and without what was stored before.",
		"volume_size": "Of the volume at that moment, in bytes.",
		"digest":      "Of the content: equal contents of equal size have equal digests.",
		"frozen_ms":   "How long writes to the volume waited, in milliseconds.",
		"daily":       "It is a daily one, not made on demand.",
		"fault":       "Why it failed.",
	})
	openapi.Describe[hangar.VolumeEvent](s, texts{"timestamp": "Unix milliseconds.", "error": "What went wrong; left out when nothing did."})
	openapi.Describe[hangar.Init](s, texts{
		"exec":        "Replaces everything else that says what to run.",
		"entrypoint":  "Instead of the image's.",
		"cmd":         "Instead of the image's.",
		"tty":         "Give the main process a terminal.",
		"kernel_args": "Accepted, without effect.",
	})
	openapi.Describe[hangar.Guest](s, texts{
		"cpu_kind":  "`shared` or `performance`.",
		"memory_mb": "MiB, a multiple of 256.",
	})
	openapi.Describe[hangar.RestartConfig](s, texts{
		"policy":      "`no`, `on-failure` or `always`.",
		"max_retries": "For `on-failure`: how often within five minutes.",
	})
	openapi.Describe[hangar.RootfsConfig](s, texts{"persist": "Whether changes of the root file system are kept: `never`: it is reset to the image's at every cold start; `restart`: until an update; `always`."})
	openapi.Describe[hangar.Service](s, texts{
		"internal_port":        "Where the Machine listens.",
		"autostart":            "Start the Machine when a request comes. Absent: if it is the only Machine of its App.",
		"autostop":             "What happens to an idle Machine: `off` or false, `stop` or true, `suspend`.",
		"min_machines_running": "How many Machines of the App stay running.",
	})
	openapi.Describe[hangar.Check](s, texts{
		"type":         "`tcp` or `http`.",
		"port":         "In a service: its own port unless given.",
		"headers":      "An object of texts is read, too.",
		"grace_period": "After the start, before a failure counts.",
	})
	openapi.Describe[hangar.File](s, texts{
		"raw_value": "The content, in base64.",
		"mode":      "As a number: 420 is 0644.",
	})
	openapi.Describe[hangar.Event](s, texts{
		"status":    "The new state of the Machine.",
		"source":    "Who caused it: `user`, the `machine` itself over its local socket, `flyd` for this server, `proxy` for the edge.",
		"timestamp": "Unix milliseconds.",
	})
	openapi.Describe[hangar.EventRequest](s, texts{
		"MonitorEvent": "The same exit, where older clients look for it.",
		"cold_boot":    "On a start from suspended: why memory was not restored.",
		"error":        "Why a launch, a start or a suspend failed.",
	})
	openapi.Describe[hangar.Process](s, texts{
		"stime": "Milliseconds of system time.",
		"rtime": "Milliseconds of user time.",
		"rss":   "Bytes.",
	})
	openapi.Describe[view.Process](s, texts{"cpu": "Percent of a core."})
	openapi.Describe[hangar.ExecResult](s, texts{
		"exit_code":   "128 and the signal for a command that a signal ended.",
		"exit_signal": "0 for none.",
	})
	openapi.Describe[execRequest](s, texts{
		"cmd":     "A command line, split as a shell would; nothing in it is expanded.",
		"command": "The command and its arguments, instead of `cmd`.",
		"timeout": "Seconds; 30 unless given.",
	})
	openapi.Describe[execView](s, texts{"truncated": "A stream was longer than the 4 MiB that are kept of it."})
	openapi.Describe[appRequest](s, texts{
		"app_name": "At most 63 characters of a-z, 0-9 and dash.",
		"name":     "The same, as some clients write it.",
		"network":  "Apps of one organization and one network reach each other.",
	})
	openapi.Describe[appView](s, texts{"created_at": "Unix milliseconds.", "app_role": "Always empty."})
	openapi.Describe[hangar.Image](s, texts{"size_bytes": "Unpacked.", "in_use": "By a Machine."})
	openapi.Describe[hangar.PullProgress](s, texts{"done": "Bytes.", "total": "Bytes; 0 while it is not known.", "phase": "`pulling` or `unpacking`."})
}
