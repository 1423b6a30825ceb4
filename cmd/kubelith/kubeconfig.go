package kubelith

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/pki"
)

func kubeconfigCommand() *cli.Command {
	return &cli.Command{
		Name:  "kubeconfig",
		Usage: "print the admin kubeconfig or, in an emergency, one that bypasses RBAC",
		Flags: append(config.DirFlags("writeKubeconfig", "bindAddress", "httpsPort"),
			&cli.BoolFlag{Name: "super-admin", Usage: "print a new kubeconfig in system:masters; it cannot be revoked before it expires"},
			&cli.DurationFlag{Name: "ttl", Usage: fmt.Sprintf("lifetime of the super-admin kubeconfig, at most %s", pki.SuperAdminLife), Value: time.Hour}),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.IsSet("ttl") && !c.Bool("super-admin") {
				return fmt.Errorf("--ttl is for --super-admin: the administrator's kubeconfig is renewed by the server")
			}
			cfg, err := config.LoadDirs(c)
			if err != nil {
				return err
			}
			text, err := kubeconfig(cfg, c.Bool("super-admin"), c.Duration("ttl"))
			if err == nil {
				_, err = c.App.Writer.Write(text)
			}
			return err
		},
	}
}

func kubeconfig(cfg *config.Server, superAdmin bool, ttl time.Duration) ([]byte, error) {
	if superAdmin {
		return pki.SuperAdmin(pki.Dir(cfg.DataDir), cfg.URL(), time.Now(), ttl)
	}
	text, err := os.ReadFile(cfg.WriteKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no administrator's kubeconfig (%w): run this as root on a server, with the server's --write-kubeconfig", err)
	}
	return text, nil
}
