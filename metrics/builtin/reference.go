package builtin

import "slices"

// Type is the kind of a family's values.
type Type string

// The types.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Family is a metric of the reference.
type Family struct {
	Name   string // without a prefix
	Type   Type
	Labels []string // beside the common ones
	Unit   string   // empty: none
	Help   string
	Absent string // why there are no such series; empty: there are
}

// Series are the names of the family's series.
func (f *Family) Series() []string {
	if f.Type != Histogram {
		return []string{f.Name}
	}
	return []string{f.Name + "_bucket", f.Name + "_sum", f.Name + "_count"}
}

// Reasons why families are absent.
const (
	notTold  = "the guest's own kernel knows it, and does not tell the server"
	noSuch   = "the guest's kernel has nothing of the kind"
	otherEnd = "the Machine's own end of the device alone would count it"
	noCredit = "a Machine saves up no processor time: it may use all of its processors at any time"
)

// Reference returns every documented family, in the order of the documentation.
func Reference() []Family {
	return slices.Concat(edgeFamilies(), appFamilies(), instanceFamilies(), memoryFamilies(), processorFamilies(), diskFamilies(), networkFamilies(), fileFamilies(), volumeFamilies())
}

func edgeFamilies() []Family {
	return withLabel("proxy_id", []Family{
		{Name: "edge_http_responses_count", Type: Counter, Labels: []string{"status"}, Help: "Answers to clients, from a Machine or from the edge itself"},
		{Name: "edge_http_response_time_seconds", Type: Histogram, Labels: []string{"status"}, Unit: "seconds", Help: "From the header of a request to that of its answer"},
		{Name: "edge_tcp_connects_count", Type: Counter, Help: "Connections of clients, once it is known which App they are for"},
		{Name: "edge_tcp_disconnects_count", Type: Counter, Help: "Those of them that have ended"},
		{Name: "edge_data_out", Type: Counter, Unit: "bytes", Help: "Sent to clients: what TCP, QUIC and UDP carry, with TLS"},
		{Name: "edge_data_in", Type: Counter, Unit: "bytes", Help: "Received from clients, likewise"},
		{Name: "edge_tls_handshake_errors", Type: Counter, Labels: []string{"servername"}, Help: "TLS handshakes over TCP that failed, by hostname or wildcard of the App; without a name: the client named another one"},
		{Name: "edge_tls_handshake_time_seconds", Type: Histogram, Labels: []string{"version"}, Unit: "seconds", Help: "How long TLS handshakes over TCP took; version is TLSv1.2 or TLSv1.3"},
	})
}

func appFamilies() []Family {
	return withLabel("proxy_id", []Family{
		{Name: "app_concurrency", Type: Gauge, Help: "Requests and connections in flight in the Machine"},
		{Name: "app_http_responses_count", Type: Counter, Labels: []string{"status"}, Help: "Answers of the Machine, including those replayed elsewhere"},
		{Name: "app_http_response_time_seconds", Type: Histogram, Labels: []string{"status"}, Unit: "seconds", Help: "From when the request was sent to the Machine, with the time to connect, to the header of its answer"},
		{Name: "app_connect_time_seconds", Type: Histogram, Unit: "seconds", Help: "How long connections to the Machine took"},
		{Name: "app_tcp_connects_count", Type: Counter, Help: "Connections to the Machine"},
		{Name: "app_tcp_disconnects_count", Type: Counter, Help: "Those of them that have ended"},
	})
}

func instanceFamilies() []Family {
	return []Family{
		{Name: "instance_up", Type: Gauge, Help: "1 while the Machine is started"},
		{Name: "instance_exit_code", Type: Gauge, Help: "Of the main process, when it ended last; absent before"},
		{Name: "instance_exit_oom", Type: Gauge, Help: "1 if that was for want of memory, else 0"},
		{Name: "instance_exit_vm_code", Type: Gauge, Help: "Of the sandbox, which ends with the code of the main process"},
		{Name: "instance_load_average", Type: Gauge, Labels: []string{"minutes"}, Help: "Processors in use, averaged as Linux does over 1, 5 and 15 minutes; threads that wait for one are not seen"},
	}
}

func memoryFamilies() []Family {
	list := []Family{
		{Name: "mem_total", Help: "What the config gives the Machine"},
		{Name: "mem_free", Help: "Neither used by the Machine nor taken by the cache of its files"},
		{Name: "mem_available", Help: "Not used by the Machine"},
		{Name: "buffers", Absent: noSuch},
		{Name: "cached", Help: "The page cache that the server keeps for the Machine's files"},
		{Name: "swap_cached", Absent: noSuch},
		{Name: "active", Absent: notTold},
		{Name: "inactive", Absent: notTold},
		{Name: "swap_total", Help: "What swap_size_mb of the config gives, where the server has swap; else 0"},
		{Name: "swap_free", Help: "What of it is not taken"},
		{Name: "dirty", Help: "Of cached, what is not on the disk yet"},
		{Name: "writeback", Help: "Of cached, what is just being written"},
		{Name: "slab", Absent: noSuch},
		{Name: "shmem", Absent: notTold},
		{Name: "vmalloc_total", Absent: noSuch},
		{Name: "vmalloc_used", Absent: noSuch},
		{Name: "vmalloc_chunk", Absent: noSuch},
	}
	for i := range list {
		list[i].Name, list[i].Type, list[i].Unit = "instance_memory_"+list[i].Name, Gauge, "bytes"
	}
	return list
}

func processorFamilies() []Family {
	return []Family{
		{Name: "instance_cpu", Type: Counter, Labels: []string{"cpu_id", "mode"}, Unit: "centiseconds", Help: "Time of all processors together (cpu_id is all), the sandbox's own included, in the modes user, system and idle. idle is what the Machine's processors could have done beyond that. The other modes are absent: " + noSuch},
		{Name: "instance_cpu_baseline", Type: Gauge, Unit: "CPUs", Help: "Processors that the Machine may use without a break"},
		{Name: "instance_cpu_balance", Type: Gauge, Unit: "centiseconds", Absent: noCredit},
		{Name: "instance_cpu_throttle", Type: Counter, Unit: "centiseconds", Help: "Time for which the Machine was kept from running because it had used its processors up"},
	}
}

func diskFamilies() []Family {
	return series("instance_disk_", "device", []Family{
		{Name: "reads_completed", Help: "Reads, of the device on the server since the Machine was started; vdb is the root file system, vdc the volume"},
		{Name: "reads_merged", Help: "Reads that were done together with others"},
		{Name: "sectors_read", Unit: "512 bytes"},
		{Name: "time_reading", Unit: "milliseconds", Help: "Sum over all reads"},
		{Name: "writes_completed"},
		{Name: "writes_merged"},
		{Name: "sectors_written", Unit: "512 bytes"},
		{Name: "time_writing", Unit: "milliseconds", Help: "Sum over all writes"},
		{Name: "io_in_progress", Type: Gauge, Help: "Reads and writes under way"},
		{Name: "time_io", Unit: "milliseconds", Help: "For which there was something under way"},
		{Name: "time_io_weighted", Unit: "milliseconds", Help: "Likewise, times how much"},
	})
}

func networkFamilies() []Family {
	return series("instance_net_", "device", []Family{
		{Name: "recv_bytes", Unit: "bytes", Help: "Of eth0, counted by the server, since the Machine has its network"},
		{Name: "recv_packets"},
		{Name: "recv_errs"},
		{Name: "recv_drop", Help: "Packets that the Machine was too slow to take"},
		{Name: "recv_fifo"},
		{Name: "recv_frame", Absent: otherEnd},
		{Name: "recv_compressed"},
		{Name: "recv_multicast", Absent: otherEnd},
		{Name: "sent_bytes", Unit: "bytes"},
		{Name: "sent_packets"},
		{Name: "sent_errs"},
		{Name: "sent_drop"},
		{Name: "sent_fifo"},
		{Name: "sent_colls", Absent: otherEnd},
		{Name: "sent_carrier", Absent: otherEnd},
		{Name: "sent_compressed"},
	})
}

func fileFamilies() []Family {
	list := series("instance_filesystem_", "mount", []Family{
		{Name: "blocks", Type: Gauge, Help: "Of the root file system (/) and of volumes, where they are mounted"},
		{Name: "block_size", Type: Gauge, Unit: "bytes"},
		{Name: "blocks_free", Type: Gauge},
		{Name: "blocks_avail", Type: Gauge, Help: "Of those, what is not root's alone"},
	})
	return append([]Family{
		{Name: "instance_filefd_allocated", Type: Gauge, Absent: notTold},
		{Name: "instance_filefd_maximum", Type: Gauge, Absent: notTold},
	}, list...)
}

func volumeFamilies() []Family {
	return []Family{
		{Name: "volume_size_bytes", Type: Gauge, Labels: []string{"id"}, Unit: "bytes", Help: "What the volume was made or extended to"},
		{Name: "volume_used_pct", Type: Gauge, Labels: []string{"id"}, Unit: "percent", Help: "As df says; of a volume that no Machine has mounted as it was left, absent if it never was"},
	}
}

// series completes families of one kind.
func series(prefix, label string, list []Family) []Family {
	for i := range list {
		f := &list[i]
		f.Name, f.Labels = prefix+f.Name, []string{label}
		if f.Type == "" {
			f.Type = Counter
		}
	}
	return list
}

// withLabel adds a label to families.
func withLabel(label string, list []Family) []Family {
	for i := range list {
		list[i].Labels = append(list[i].Labels, label)
	}
	return list
}
