package node

import (
	"fmt"
	"net"
	"path/filepath"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/jointoken"
)

// tokenFile returns the file in which a server keeps a valid token.
func tokenFile(cfg *config.Server) string { return filepath.Join(cfg.DataDir, "server", "token") }

// joinURL returns the URL at which other machines reach the API: the virtual address, if this server has one.
func joinURL(cfg *config.Server) string {
	address := cfg.AdvertiseAddress
	if vip := cfg.VirtualAddress(); vip.IsValid() {
		address = vip.String()
	}
	return "https://" + net.JoinHostPort(address, fmt.Sprint(cfg.HTTPSPort))
}

// joinHint is shown to the user at the terminal.
func joinHint(cfg *config.Server) string {
	return fmt.Sprintf("to join a machine, create a token here:\n  %s\nthen run there, with that file:\n  %s\n", jointoken.MakeCommand, jointoken.Command(joinURL(cfg)))
}
