package publicdial

// Check decides as it is decided at the socket.
func (d *Dialer) Check(host, dialled string) error { return d.check(host, dialled) }
