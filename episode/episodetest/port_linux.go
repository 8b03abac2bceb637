package episodetest

import (
	"fmt"
	"os"
	"syscall"
)

// A heldPort is a loopback port that nobody else is given, whether or not the proxy
// listens on it.
type heldPort struct {
	address string
	file    *os.File
}

// holdPort binds a socket to a port and never listens on it. As both it and the
// proxy's listeners have SO_REUSEADDR, as Go's listeners do, they may share the port;
// the kernel gives a port that is bound to nobody who asks for any.
func holdPort() (heldPort, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return heldPort{}, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "port")
	port, err := bindLoopback(fd)
	if err != nil {
		_ = file.Close()
		return heldPort{}, err
	}
	return heldPort{fmt.Sprintf("127.0.0.1:%d", port), file}, nil
}

func bindLoopback(fd int) (port int, err error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	return address.(*syscall.SockaddrInet4).Port, nil
}

func (h heldPort) release() error { return h.file.Close() }
