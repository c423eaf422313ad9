package hangar

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	// MaxMounts bounds the volumes in a config. The Machine's host decides how many it supports.
	MaxMounts = 16

	maxPathBytes = 4095 // of a path in a Machine
)

func (c *MachineConfig) validateMounts() error {
	if len(c.Mounts) > MaxMounts {
		return badConfig("config.mounts", "has %d entries, more than the %d that are allowed", len(c.Mounts), MaxMounts)
	}
	for i := range c.Mounts {
		m, at := &c.Mounts[i], "config.mounts["+strconv.Itoa(i)+"]"
		if err := m.validate(at); err != nil {
			return err
		}
		for _, other := range c.Mounts[:i] {
			switch {
			case other.Volume == m.Volume:
				return badConfig(at+".volume", "%q is mounted twice", m.Volume)
			case within(m.Path, other.Path), within(other.Path, m.Path):
				return badConfig(at+".path", "%q and %q are one below the other", m.Path, other.Path)
			}
		}
	}
	return nil
}

func (m *Mount) validate(at string) error {
	switch {
	case m.Volume == "":
		return badConfig(at+".volume", "is required: the id of a volume")
	case !VolumeID(m.Volume).Valid():
		return badConfig(at+".volume", "%.40q is not the id of a volume", m.Volume)
	case m.Path == "":
		return badConfig(at+".path", "is required: where the volume is mounted")
	case len(m.Path) > maxPathBytes:
		return badConfig(at+".path", "has %d bytes, more than the %d that are allowed", len(m.Path), maxPathBytes)
	case !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/":
		return badConfig(at+".path", "%q is not an absolute path such as /data", m.Path)
	case strings.ContainsFunc(m.Path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return badConfig(at+".path", "%q has control characters", m.Path)
	}
	platforms := append([]string{GuestDir.Neutral, GuestDir.Original}, reservedPaths...)
	if slices.ContainsFunc(platforms, func(dir string) bool { return within(m.Path, dir) }) {
		return badConfig(at+".path", "%q is not for volumes: the platform has %v", m.Path, platforms)
	}
	return m.validateSizes(at)
}

// within reports whether a path is a directory or below it.
func within(name, dir string) bool { return strings.HasPrefix(name+"/", dir+"/") }

// validateSizes checks when and how far the platform extends a volume.
func (m *Mount) validateSizes(at string) error {
	for _, size := range []struct {
		name string
		gb   int
	}{{".size_gb", m.SizeGB}, {".add_size_gb", m.AddSizeGB}, {".size_gb_limit", m.SizeGBLimit}} {
		if size.gb < 0 || size.gb > MaxVolumeGB {
			return badConfig(at+size.name, "%d is not from 0 to %d", size.gb, MaxVolumeGB)
		}
	}
	switch {
	case m.ExtendThresholdPercent < 0 || m.ExtendThresholdPercent > 100:
		return badConfig(at+".extend_threshold_percent", "%d is not from 0 to 100", m.ExtendThresholdPercent)
	case m.ExtendThresholdPercent > 0 && m.AddSizeGB == 0:
		return badConfig(at+".add_size_gb", "is required with extend_threshold_percent")
	case m.ExtendThresholdPercent == 0 && m.AddSizeGB > 0:
		return badConfig(at+".add_size_gb", "needs extend_threshold_percent")
	case m.ExtendThresholdPercent == 0 && m.SizeGBLimit > 0:
		return badConfig(at+".size_gb_limit", "needs extend_threshold_percent")
	default:
		return nil
	}
}

// DescribeMount sets the name, size and encryption of a volume in the mount that uses it. Clients leave
// them out and expect to read them. It reports whether that changed the config.
func (c *MachineConfig) DescribeMount(v *Volume) bool {
	i := slices.IndexFunc(c.Mounts, func(m Mount) bool { return m.Volume == string(v.ID) })
	if i < 0 {
		return false
	}
	next := c.Mounts[i]
	next.Name, next.SizeGB, next.Encrypted = v.Name, v.SizeGB, v.Encrypted
	if next == c.Mounts[i] {
		return false
	}
	c.Mounts = slices.Clone(c.Mounts) // others may share it
	c.Mounts[i] = next
	return true
}
