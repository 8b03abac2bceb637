//go:build unix

package pool

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"
)

// awaitReply waits until a connection has something to read, or has ended. TLS may have
// read it already, and waits by itself.
func awaitReply(conn net.Conn) error {
	if _, secured := conn.(*tls.Conn); secured {
		return nil
	}
	raw := socketOf(conn)
	if raw == nil {
		return nil
	}
	var broken error
	err := raw.Read(func(fd uintptr) bool {
		broken = look(fd)
		return !errors.Is(broken, syscall.EAGAIN)
	})
	if err == nil && broken != nil { // the kernel says it once
		err = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", broken)}
	}
	return err
}

// ended reports whether an idle connection is of no more use: its peer has closed it, or
// has said what nobody asked for.
func ended(conn net.Conn) bool {
	raw := socketOf(conn)
	if raw == nil {
		return false
	}
	var open bool
	err := raw.Read(func(fd uintptr) bool {
		open = errors.Is(look(fd), syscall.EAGAIN)
		return true
	})
	return err != nil || !open
}

// look looks at what there is to read and takes nothing of it: nil when there is
// something, or the end of the connection; EAGAIN when there is nothing.
func look(fd uintptr) error {
	var one [1]byte
	for {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// socketOf is the socket beneath a connection, nil when there is none.
func socketOf(conn net.Conn) syscall.RawConn {
	for {
		switch c := conn.(type) {
		case syscall.Conn:
			raw, err := c.SyscallConn()
			if err != nil {
				return nil
			}
			return raw
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil
		}
	}
}
