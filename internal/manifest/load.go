package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/internal/desired"
)

// DefaultNamespace is the namespace of objects that name none.
const DefaultNamespace = "default"

// maxFileBytes bounds a file: no cluster takes objects of that size.
const maxFileBytes = 16 << 20

// Options change what is checked.
type Options struct {
	// SkipReferences accepts resources whose Secrets and ConfigMaps are not among the files, as where another tool
	// makes them in the cluster.
	SkipReferences bool
}

// Load reads files, and the *.yaml and *.yml files of directories, not those below them, and checks everything.
// Its error is of type Problems and holds all that is wrong.
func Load(ctx context.Context, schemas *Schemas, opts Options, paths ...string) (*Set, error) {
	l := &loader{schemas: schemas, set: &Set{}, seen: make(map[string]Origin)}
	for _, path := range paths {
		l.path(ctx, path)
	}
	if !opts.SkipReferences {
		l.references()
	}
	if len(l.problems) > 0 {
		return nil, l.problems.sorted()
	}
	return l.set, nil
}

// loader collects a set and what is wrong with it.
type loader struct {
	schemas  *Schemas
	set      *Set
	problems Problems
	// seen holds the objects by kind, namespace and name.
	seen map[string]Origin
	// named is what the resources name, checked when all files are read.
	named []named
}

// named is what one document names.
type named struct {
	doc       *document
	namespace string
	refs      []desired.Reference
}

func (l *loader) refuse(file, text string) {
	l.problems = append(l.problems, Problem{File: file, Text: text})
}

func (l *loader) path(ctx context.Context, path string) {
	info, err := os.Stat(path)
	if err != nil {
		l.refuse(path, fileWords(err))
		return
	}
	if !info.IsDir() {
		l.file(ctx, path)
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		l.refuse(path, fileWords(err))
		return
	}
	found := false
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
			found = true
			l.file(ctx, filepath.Join(path, e.Name()))
		}
	}
	if !found {
		l.refuse(path, "holds no .yaml or .yml file")
	}
}

func fileWords(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "may not be read by this user"
	default:
		return "cannot be read: " + err.Error()
	}
}

func (l *loader) file(ctx context.Context, path string) {
	content, err := readFile(path)
	if err != nil {
		l.refuse(path, fileWords(err))
		return
	}
	for _, c := range split(bytes.TrimPrefix(content, []byte("\ufeff"))) {
		doc, problems := parse(path, c)
		l.problems = append(l.problems, problems...)
		if doc != nil {
			l.document(ctx, doc)
		}
	}
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("it is larger than %d bytes", maxFileBytes)
	}
	return os.ReadFile(path) //nolint:gosec // the path is the user's own argument
}

// document takes in one object.
func (l *loader) document(ctx context.Context, doc *document) {
	apiVersion, kind := doc.text("apiVersion"), doc.text("kind")
	group, _, _ := strings.Cut(apiVersion, "/")
	schema, ours := l.schemas.Kind(kind)
	switch {
	case apiVersion == "" || kind == "":
		l.problems = append(l.problems, doc.problem("", "must have apiVersion and kind, both text"))
	case group == v1alpha1.GroupVersion.Group && !ours:
		l.problems = append(l.problems, doc.problem("kind",
			"is no kind of "+group+": choose "+strings.Join(l.schemas.Kinds(), " or ")))
	case group == v1alpha1.GroupVersion.Group && apiVersion != v1alpha1.GroupVersion.String():
		l.problems = append(l.problems, doc.problem("apiVersion", "must be "+v1alpha1.GroupVersion.String()))
	case group == v1alpha1.GroupVersion.Group:
		l.resource(ctx, doc, schema)
	case apiVersion == "v1" && kind == desired.KindSecret:
		l.secret(doc)
	case apiVersion == "v1" && kind == desired.KindConfigMap:
		l.configMap(doc)
	default:
		name, _ := doc.metadata()["name"].(string)
		l.set.Ignored = append(l.set.Ignored, Ignored{Kind: apiVersion + " " + kind, Name: name, Origin: doc.origin()})
	}
}

func (d *document) text(name string) string {
	s, _ := d.value[name].(string)
	return s
}

func (d *document) metadata() map[string]any {
	m, _ := d.value["metadata"].(map[string]any)
	return m
}

// name settles an object's namespace and name and refuses the second of one kind. It returns ok only for a name that
// can be used.
func (l *loader) name(doc *document) (namespace, name string, ok bool) {
	meta := doc.metadata()
	if meta == nil {
		l.problems = append(l.problems, doc.problem("metadata", "must be a mapping with a name"))
		return "", "", false
	}
	namespace = DefaultNamespace
	for _, field := range []string{"namespace", "name"} {
		if _, text := meta[field].(string); meta[field] != nil && !text {
			l.problems = append(l.problems, doc.problem("metadata."+field, "must be text: put the value in quotes"))
			return "", "", false
		}
	}
	if given, _ := meta["namespace"].(string); given != "" {
		namespace = given
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			l.problems = append(l.problems, doc.problem("metadata.namespace",
				"must be a namespace: lower case letters, digits and -, at most 63"))
			return "", "", false
		}
	}
	meta["namespace"] = namespace
	name, _ = meta["name"].(string)
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		l.problems = append(l.problems, doc.problem("metadata.name",
			"must be a name: lower case letters, digits, - and ., beginning and ending with a letter or digit"))
		return "", "", false
	}
	id := doc.text("kind") + " " + namespace + "/" + name
	if first, twice := l.seen[id]; twice {
		l.problems = append(l.problems, doc.problem("metadata.name",
			fmt.Sprintf("%s is already defined at %s", id, first)))
		return "", "", false
	}
	l.seen[id] = doc.origin()
	return namespace, name, true
}

func (l *loader) secret(doc *document) {
	namespace, name, ok := l.name(doc)
	secret, problems := doc.secret(namespace, name)
	l.problems = append(l.problems, problems...)
	if ok {
		l.set.Secrets = append(l.set.Secrets, secret)
	}
}

func (l *loader) configMap(doc *document) {
	namespace, name, ok := l.name(doc)
	configMap, problems := doc.configMap(namespace, name)
	l.problems = append(l.problems, problems...)
	if ok {
		l.set.ConfigMaps = append(l.set.ConfigMaps, configMap)
	}
}

// resource takes in a relay or a consumer the way an API server does: unknown fields out, defaults in, rules checked.
func (l *loader) resource(ctx context.Context, doc *document, schema *Schema) {
	_, _, ok := l.name(doc)
	delete(doc.value, "status") // a server ignores what a client says about status
	found := len(l.problems)
	for _, path := range schema.Prune(doc.value) {
		l.problems = append(l.problems, doc.problem(path, schema.unknown(path)))
	}
	schema.Default(doc.value)
	for _, e := range schema.Validate(ctx, nil, doc.value) {
		// The name's own form has been checked, in plainer words.
		if ok || (e.Field != "metadata.name" && e.Field != "metadata") {
			l.problems = append(l.problems, doc.problem(e.Field, wording(e)))
		}
	}
	if ok {
		l.take(doc, len(l.problems) == found)
	}
}

// take reads a resource as its type, with what a server would have given it. It joins the set only if it is sound and
// its workers accept it too; what it names is checked in any case.
func (l *loader) take(doc *document, sound bool) {
	var refused error
	switch doc.text("kind") {
	case v1alpha1.KindOutboxRelay:
		refused = l.takeRelay(doc, sound)
	case v1alpha1.KindInboxConsumer:
		refused = l.takeConsumer(doc, sound)
	default:
		refused = errors.New("is a kind without a reader") // a definition was added and this was not
	}
	if refused != nil {
		l.problems = append(l.problems, doc.problem("spec", refused.Error()))
	}
}

func (l *loader) takeRelay(doc *document, sound bool) error {
	relay, err := decode[v1alpha1.OutboxRelay](doc.value)
	if err != nil {
		return ifSound(sound, err)
	}
	relay.Generation, relay.UID = 1, localUID(v1alpha1.KindOutboxRelay, relay.Namespace, relay.Name)
	l.named = append(l.named, named{doc, relay.Namespace, desired.RelayReferences(relay)})
	if !sound {
		return nil
	}
	l.set.Relays = append(l.set.Relays, Relay{OutboxRelay: relay, Origin: doc.origin()})
	l.table(doc, relay)
	_, err = desired.Relay(relay, desired.Inputs{Root: desired.Root})
	return err
}

// table refuses the second relay of an outbox table: the database would, once it runs.
func (l *loader) table(doc *document, relay *v1alpha1.OutboxRelay) {
	pg := &relay.Spec.Source.Postgres
	for _, host := range pg.Hosts {
		within := ""
		if !strings.Contains(string(host), ".") { // a Service of the relay's own namespace
			within = relay.Namespace
		}
		id := fmt.Sprint("table ", within, " ", host, " ", pg.Port, " ", pg.Database, " ", pg.Schema, " ",
			relay.Spec.Outbox.Table)
		if first, twice := l.seen[id]; twice {
			l.problems = append(l.problems, doc.problem("spec.outbox.table", fmt.Sprintf(
				"%s is the outbox of the relay at %s already: a table has one relay, and spec.replicas says how many work on it",
				relay.Spec.Outbox.Table,
				first,
			)))
			return
		}
		l.seen[id] = doc.origin()
	}
}

func (l *loader) takeConsumer(doc *document, sound bool) error {
	consumer, err := decode[v1alpha1.InboxConsumer](doc.value)
	if err != nil {
		return ifSound(sound, err)
	}
	consumer.Generation, consumer.UID = 1, localUID(v1alpha1.KindInboxConsumer, consumer.Namespace, consumer.Name)
	l.named = append(l.named, named{doc, consumer.Namespace, desired.ConsumerReferences(consumer)})
	if !sound {
		return nil
	}
	l.set.Consumers = append(l.set.Consumers, Consumer{InboxConsumer: consumer, Origin: doc.origin()})
	cfg, err := desired.Consumer(consumer, desired.Inputs{Root: desired.Root})
	if err != nil {
		return err
	}
	l.statements(doc, &cfg)
	return nil
}

// statements checks the handler's routes as a worker does when it starts: there it is too late for file and line.
func (l *loader) statements(doc *document, cfg *config.Consumer) {
	if cfg.SQL == nil {
		return
	}
	routes := make([]sql.Route, len(cfg.SQL.Routes))
	for i, r := range cfg.SQL.Routes {
		routes[i] = sql.Route{EventTypes: r.EventTypes, Statement: r.Statement}
	}
	for _, m := range sql.Check(routes) {
		field := fmt.Sprintf("spec.handler.sql.routes[%d].%s", m.Route, m.Field)
		l.problems = append(l.problems, doc.problem(field, m.Err.Error()))
	}
}

// ifSound leaves out the error of a resource whose wrong types the schema has named already.
func ifSound(sound bool, err error) error {
	if sound {
		return err
	}
	return nil
}

// localUID stands for the UID that a server would draw. It is the same in each run, so that a relay or consumer
// started again from its file is known to its database as the same one.
func localUID(kind, namespace, name string) types.UID {
	return types.UID(uuid.NewSHA1(uuid.NameSpaceURL, []byte("postrider.dev/"+kind+"/"+namespace+"/"+name)).String())
}

// references checks that what the resources name is there with its keys. A reference that has no name yet is
// reported already.
func (l *loader) references() {
	for _, n := range l.named {
		for _, ref := range n.refs {
			if ref.Name != "" {
				l.resolve(n.doc, n.namespace, ref)
			}
		}
	}
}

func (l *loader) resolve(doc *document, namespace string, ref desired.Reference) {
	object := ref.Kind + " " + namespace + "/" + ref.Name
	at, there := l.seen[object]
	if !there {
		l.problems = append(l.problems, doc.problem(ref.Field, fmt.Sprintf(
			"%s is not among the files: add it with %s", object, ref.Wanted())))
		return
	}
	fault := ref.Fault(func(key string) bool {
		_, ok := l.set.value(namespace, ref, key)
		return ok
	})
	if fault != "" {
		l.problems = append(l.problems, doc.problem(ref.Field, fmt.Sprintf("%s (%s) %s", object, at, fault)))
	}
}
