package kubelith

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// completions are the scripts of `kubelith completion`. kubectl completes what follows `kubelith kubectl`; the flag
// that urfave/cli adds to each command completes the rest.
var completions = map[string]string{
	"bash": `# kubelith completion bash; in ~/.bashrc: source <(kubelith completion bash)
_kubelith() {
	local cur="${COMP_WORDS[COMP_CWORD]}" words
	if [ "$COMP_CWORD" -gt 1 ] && [ "${COMP_WORDS[1]}" = kubectl ]; then
		words=$("${COMP_WORDS[0]}" kubectl __completeNoDesc "${COMP_WORDS[@]:2:COMP_CWORD-1}" 2>/dev/null | grep -v '^:')
	elif [ "${cur#-}" != "$cur" ]; then
		words=$("${COMP_WORDS[@]:0:COMP_CWORD}" "$cur" --generate-bash-completion 2>/dev/null)
	else
		words=$("${COMP_WORDS[@]:0:COMP_CWORD}" --generate-bash-completion 2>/dev/null)
	fi
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _kubelith kubelith
`,
	"zsh": `#compdef kubelith
# kubelith completion zsh; in ~/.zshrc, after compinit: source <(kubelith completion zsh)
_kubelith() {
	local -a found
	local cur="${words[CURRENT]}"
	if (( CURRENT > 2 )) && [[ "${words[2]}" == kubectl ]]; then
		found=("${(@f)$(${words[1]} kubectl __completeNoDesc "${(@)words[3,CURRENT]}" 2>/dev/null | grep -v '^:')}")
	elif [[ "$cur" == -* ]]; then
		found=("${(@f)$(${(@)words[1,CURRENT-1]} "$cur" --generate-bash-completion 2>/dev/null)}")
	else
		found=("${(@f)$(${(@)words[1,CURRENT-1]} --generate-bash-completion 2>/dev/null)}")
	fi
	compadd -- $found
}
compdef _kubelith kubelith
`,
	"fish": `# kubelith completion fish; in ~/.config/fish/config.fish: kubelith completion fish | source
function __kubelith_complete
	set -l before (commandline -opc)
	set -l cur (commandline -ct)
	if test (count $before) -gt 1; and test $before[2] = kubectl
		set -l rest $before
		set -e rest[1..2]
		$before[1] kubectl __completeNoDesc $rest "$cur" 2>/dev/null | string match -v ':*'
	else if string match -q -- '-*' $cur
		$before $cur --generate-bash-completion 2>/dev/null
	else
		$before --generate-bash-completion 2>/dev/null
	end
end
complete -c kubelith -f -a '(__kubelith_complete)'
`,
}

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:         "completion",
		Usage:        "print the completion script for bash, zsh or fish",
		ArgsUsage:    "bash|zsh|fish",
		OnUsageError: usageError,
		BashComplete: func(c *cli.Context) {
			fmt.Fprintln(c.App.Writer, "bash\nzsh\nfish")
		},
		Action: func(c *cli.Context) error {
			script, ok := completions[c.Args().First()]
			if !ok || c.Args().Len() != 1 {
				return fmt.Errorf("give one shell, kubelith completion bash, zsh or fish: got %q", strings.Join(c.Args().Slice(), " "))
			}
			fmt.Fprint(c.App.Writer, script)
			return nil
		},
	}
}
