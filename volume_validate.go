package hangar

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// FSTypes lists every type of file system.
func FSTypes() []FSType { return []FSType{FSExt4, FSRaw} }

// Valid reports whether the type is one of FSTypes.
func (f FSType) Valid() bool { return slices.Contains(FSTypes(), f) }

// Complete checks every rule for a new volume that needs no look-up. It fills in defaults that do not
// depend on the source of the volume. It answers CodeInvalid, naming the field.
func (in *VolumeCreate) Complete() error {
	if err := checkVolumeName(in.Name); err != nil {
		return err
	}
	switch {
	case in.SizeGB != 0 && (in.SizeGB < MinVolumeGB || in.SizeGB > MaxVolumeGB):
		return badVolume("size_gb", "%d is not from %d to %d", in.SizeGB, MinVolumeGB, MaxVolumeGB)
	case in.FSType != "" && !in.FSType.Valid():
		return badVolume("fstype", "%.40q is none of %v", in.FSType, FSTypes())
	case in.Snapshot != "" && in.Source != "":
		return badVolume("snapshot_id", "stands beside source_volume_id; give one of the two")
	case in.Snapshot != "" && !in.Snapshot.Valid():
		return badVolume("snapshot_id", "%.40q is not the id of a snapshot", in.Snapshot)
	case in.Source != "" && !in.Source.Valid():
		return badVolume("source_volume_id", "%.40q is not the id of a volume", in.Source)
	}
	in.SnapshotRetention = cmp.Or(in.SnapshotRetention, DefaultSnapshotRetain)
	if err := checkRetention(in.SnapshotRetention); err != nil {
		return err
	}
	if in.Compute != nil {
		guest := *in.Compute // the caller's value must not change
		if err := guest.Complete("compute."); err != nil {
			return err
		}
		in.Compute = &guest
	}
	if in.Snapshot != "" || in.Source != "" {
		return nil
	}
	in.SizeGB = cmp.Or(in.SizeGB, DefaultVolumeGB)
	in.FSType = cmp.Or(in.FSType, FSExt4)
	return nil
}

// CheckSource reports whether the requested volume can be made from a source of a size and a type. It
// answers CodeInvalid, naming the field.
func (in *VolumeCreate) CheckSource(bytes int64, fs FSType) error {
	switch least := gib(bytes); {
	case in.SizeGB != 0 && in.SizeGB < least:
		return badVolume("size_gb", "%d is less than the %d of what the volume is made from", in.SizeGB, least)
	case in.FSType != "" && fs != "" && in.FSType != fs:
		return badVolume("fstype", "%q is not what is on the source, which is %q", in.FSType, fs)
	default:
		return nil
	}
}

// gib returns bytes in GiB, rounded up.
func gib(bytes int64) int { return int((bytes + 1<<30 - 1) >> 30) }

// Validate answers CodeInvalid, naming the field.
func (in *VolumeUpdate) Validate() error {
	if in.SnapshotRetention == nil {
		return nil
	}
	return checkRetention(*in.SnapshotRetention)
}

// CheckExtension reports whether a volume may be made sizeGB large. It answers
// CodeInvalid, naming the field.
func (v *Volume) CheckExtension(sizeGB int) error {
	switch {
	case sizeGB < MinVolumeGB || sizeGB > MaxVolumeGB:
		return badVolume("size_gb", "%d is not from %d to %d", sizeGB, MinVolumeGB, MaxVolumeGB)
	case sizeGB < v.SizeGB:
		return badVolume("size_gb", "%d is less than the %d that the volume has, and a volume cannot be made smaller", sizeGB, v.SizeGB)
	default:
		return nil
	}
}

func checkVolumeName(name string) error {
	switch {
	case name == "":
		return badVolume("name", "is required: at most %d characters of a-z, 0-9 and underscore", MaxVolumeName)
	case len(name) > MaxVolumeName:
		return badVolume("name", "has %d characters, more than the %d that are allowed", len(name), MaxVolumeName)
	case strings.Trim(name, idAlphabet+"_") != "":
		return badVolume("name", "%q has other characters than a-z, 0-9 and underscore", name)
	default:
		return nil
	}
}

func checkRetention(days int) error {
	if days < MinSnapshotRetention || days > MaxSnapshotRetention {
		return badVolume("snapshot_retention", "%d is not from %d to %d days", days, MinSnapshotRetention, MaxSnapshotRetention)
	}
	return nil
}

func badVolume(field, rule string, args ...any) error {
	return Errorf(CodeInvalid, "", "invalid %s: %s", field, fmt.Sprintf(rule, args...))
}

// VolumeNotFound is the error for a volume that does not exist, or that the caller may not see.
func VolumeNotFound(id VolumeID) *Error {
	return Errorf(CodeNotFound, ReasonVolumeNotFound, "volume not found: %.40s", id)
}

// SnapshotNotFound is the error for a snapshot that does not exist, or that the caller may not see.
func SnapshotNotFound(id SnapshotID) *Error {
	return Errorf(CodeNotFound, ReasonSnapshotNotFound, "snapshot not found: %.40s", id)
}

// VolumeClaimed is the error for a Machine that mounts the volume of another one.
func VolumeClaimed(by MachineID) *Error {
	return Errorf(CodeFailedPrecondition, ReasonVolumeAttached, "volume already claimed by machine %s", by)
}

// VolumeBound is the error for the destruction of a volume that a Machine has.
func VolumeBound(to MachineID) *Error {
	return Errorf(CodeFailedPrecondition, ReasonVolumeAttached, "volume is currently bound to machine: %s", to)
}
