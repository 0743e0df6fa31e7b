package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/manifest"
)

const validateText = `Check resources as a cluster would, without one.

Schemas, rules and defaults are those of the CustomResourceDefinitions, carried
out by the API server's own code. Secrets and ConfigMaps that the resources name
must be among the files with the keys that are used, unless --skip-references
leaves that to the cluster. Everything wrong is printed at once, one problem a
line, with file, line and field; the values of Secrets never are.`

// newValidateCommand returns the command that checks resources.
func newValidateCommand() *cobra.Command {
	var (
		paths []string
		opts  manifest.Options
	)
	command := &cobra.Command{
		Use:     "validate -f DIR",
		Short:   "Check resources as a cluster would, and name everything that is wrong",
		Long:    validateText,
		Example: "  postrider validate -f config/samples",
		Args:    onlyResources,
		RunE: func(command *cobra.Command, _ []string) error {
			set, err := loadResources(command, opts, paths)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "OK: %s valid\n", counted(set.Resources(), "resource"))
			return err
		},
	}
	flags := command.Flags()
	resourcesFlag(command, &paths)
	flags.BoolVar(&opts.SkipReferences, "skip-references", false,
		"accept resources whose Secrets and ConfigMaps are not among the files")
	return command
}

// resourcesFlag gives a command the flag -f. It may be repeated; onlyResources sees to it that it is there.
func resourcesFlag(command *cobra.Command, paths *[]string) {
	command.Flags().StringArrayVarP(paths, "filename", "f", nil,
		"folder (`DIR`) or file with the resources and their Secrets; may be repeated")
}

// onlyResources refuses a command line without -f, and one with arguments: most likely the -f was forgotten.
func onlyResources(command *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && !command.Flags().Changed("filename"):
		return fmt.Errorf("unexpected argument %q: a folder with resources comes after -f", args[0])
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	case !command.Flags().Changed("filename"):
		return fmt.Errorf("no resources: name their folder, as in %s -f config/samples", command.CommandPath())
	default:
		return nil
	}
}

// loadResources reads resources, says which objects are ignored and prints everything wrong.
func loadResources(command *cobra.Command, opts manifest.Options, paths []string) (*manifest.Set, error) {
	schemas, err := manifest.LoadSchemas()
	if err != nil {
		return nil, err
	}
	set, err := manifest.Load(command.Context(), schemas, opts, paths...)
	if problems, ok := errors.AsType[manifest.Problems](err); ok {
		for _, p := range problems {
			_, _ = fmt.Fprintln(command.ErrOrStderr(), p)
		}
		_, _ = fmt.Fprintf(command.ErrOrStderr(), "NOT OK: %s\n", counted(len(problems), "problem"))
		return nil, reported(exitWrong, err)
	}
	if err != nil {
		return nil, err
	}
	for _, i := range set.Ignored {
		_, _ = fmt.Fprintf(command.ErrOrStderr(), "%s: %s %s is ignored: it is no kind of Postrider's\n",
			i.Origin, i.Kind, i.Name)
	}
	if set.Resources() == 0 {
		return nil, wrong(fmt.Errorf("no OutboxRelay and no InboxConsumer in %q", paths))
	}
	return set, nil
}

// counted writes a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
