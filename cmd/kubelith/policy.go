package kubelith

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/why"
)

func policyCommand() *cli.Command {
	return &cli.Command{
		Name:  "policy",
		Usage: "explain network policies",
		Subcommands: []*cli.Command{{
			Name:      "explain",
			Usage:     "report whether network policies allow a connection, and which rule decides",
			ArgsUsage: "POD POD[:PORT]|ADDRESS[:PORT]",
			Description: "A pod is NAME or pod/NAME. Without a port, it checks protocols that have none, such as ICMP.\n" +
				"The command reads with your permissions.\n" +
				"Exit codes: 0 allowed, 1 no answer, 3 denied.",
			Flags: append([]cli.Flag{
				&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "namespace of the pods (default: that of the kubeconfig's context)"},
				&cli.StringFlag{Name: "to-namespace", Usage: "namespace of the second pod (default: that of the first)"},
				&cli.StringFlag{Name: "protocol", Usage: "TCP, UDP or SCTP", Value: "TCP"},
			}, accessFlags()...),
			OnUsageError: usageError,
			Action: asking(func(c *cli.Context, args []string) error {
				if len(args) != 2 {
					return fmt.Errorf("policy explain needs a pod and its destination, such as web db:5432: got %q", args)
				}
				return explainPolicy(c, args[0], args[1])
			}),
		}},
	}
}

func explainPolicy(c *cli.Context, from, to string) error {
	protocol := corev1.Protocol(strings.ToUpper(c.String("protocol")))
	switch protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		return fmt.Errorf("--protocol %s: use TCP, UDP or SCTP", protocol)
	}
	end, port, err := destinationOf(to)
	if err != nil {
		return err
	}
	access, cfg, err := clusterOf(c)
	if err != nil {
		return err
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	namespace, _, err := access.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	reader := why.NewReader(why.Options{Client: cs, Dynamic: dyn})
	connection := why.Connection{Port: port, Protocol: protocol}
	where := fmt.Sprintf("%s port %d", protocol, port)
	if port == 0 {
		connection.Protocol, where = "", "any protocol without ports"
	}
	from = strings.TrimPrefix(from, "pod/")
	if connection.From, err = reader.Pod(c.Context, namespace, from); err != nil {
		return err
	}
	if connection.Address, err = netip.ParseAddr(end); err != nil {
		if c.IsSet("to-namespace") {
			namespace = c.String("to-namespace")
		}
		end = strings.TrimPrefix(end, "pod/")
		if connection.To, err = reader.Pod(c.Context, namespace, end); err != nil {
			return err
		}
	}
	answer, err := why.ExplainPolicies(c.Context, reader, connection)
	if err != nil {
		return err
	}
	word := "Allowed"
	if !answer.Allowed {
		word = "Denied"
	}
	fmt.Fprintf(c.App.Writer, "%s: %s to %s, %s\n", word, from, end, where)
	for _, reason := range answer.Reasons {
		fmt.Fprintf(c.App.Writer, "  %s\n", reason)
	}
	for _, unread := range answer.Unread {
		fmt.Fprintf(c.App.Writer, "  unknown: %s\n", unread)
	}
	if !answer.Allowed {
		return answered(exitBroken)
	}
	return nil
}

// destinationOf splits a destination: a pod's name has no colon, an IPv6 address with a port has brackets.
func destinationOf(s string) (end string, port uint16, err error) {
	if _, err := netip.ParseAddr(s); err == nil {
		return s, 0, nil
	}
	end, number, has := strings.Cut(s, ":")
	if strings.HasPrefix(s, "[") {
		end, number, has = strings.Cut(s[1:], "]:")
	}
	if !has {
		return end, 0, nil
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q: the port must be a number from 1 to 65535", s)
	}
	return end, uint16(n), nil
}
