package kubelith

import (
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/removed"
	"kubelith.io/kubelith/components/controlplane/servers"
)

func nodeCommand() *cli.Command {
	return group("node", "remove nodes and revoke their credentials",
		administratorCommand("remove", "NAME",
			"delete a node, or one of several servers, and its pods, and revoke its credentials at once", removeNode,
			&cli.BoolFlag{Name: "force", Usage: "revoke the credentials issued to this name even if the node does not exist"}))
}

func removeNode(c *cli.Context, cs kubernetes.Interface) error {
	if c.NArg() != 1 {
		return errors.New("node remove needs the name of one node, after its flags: kubelith kubectl get nodes shows the names")
	}
	name := c.Args().First()
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	wasServer := false
	if slices.ContainsFunc(v.Servers, func(s servers.Status) bool { return s.Name == name }) {
		if err := removeServer(c.Context, cs, name); err != nil {
			return err
		}
		wasServer = true
		fmt.Fprintf(c.App.Writer, "server %s is no longer in the cluster\n", name)
	}
	token, err := removed.Remove(c.Context, cs, name, c.Bool("force"))
	switch {
	case errors.Is(err, removed.ErrNoNode) && wasServer: // a witness, or one that runs no pods
		return nil
	case errors.Is(err, removed.ErrNoNode):
		return fmt.Errorf("node %s does not exist: kubelith kubectl get nodes lists the nodes; "+
			"kubelith node remove --force %[1]s revokes its credentials anyway", name)
	case err != nil:
		return err
	}
	fmt.Fprintf(c.App.Writer, "node %s removed; its machine needs a token to join again\n", name)
	if token != "" {
		fmt.Fprintf(c.App.Writer,
			"its join token %s still exists: run kubelith token delete %[1]s if the machine is compromised\n", token)
	}
	return nil
}
