package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
)

// The files of a mounted Secret that log in, besides username and password.
const (
	fileUsername    = "username"
	fileToken       = "nats-token"
	fileNKey        = "nkey"
	fileCredentials = "user.creds"
)

// login is how a connection proves who it is.
type login struct {
	option natsgo.Option
	// what names what the server looks at, for a person: "username and password".
	what string
}

// readLogin returns the login that the Secret's files hold now. A folder without a name is no login. Its error names
// files and nothing of their content.
func readLogin(dir string) (login, *broker.Error) {
	if dir == "" {
		return login{option: func(*natsgo.Options) error { return nil }, what: "whether it wants credentials"}, nil
	}
	file, err := loginFile(dir)
	if err != nil {
		return login{}, err
	}
	got := login{what: "the Secret's " + file}
	var cause error
	switch file {
	case fileToken:
		got.option, cause = token(dir)
	case fileNKey:
		got.option, cause = nkey(dir)
	case fileCredentials:
		got.option, cause = credentials(dir)
	default:
		got.what = "the Secret's username and password"
		got.option, cause = userAndPassword(dir)
	}
	if cause != nil {
		return login{}, &broker.Error{
			Reason: broker.ReasonNoCredentials, Detail: "mend " + got.what + ": " + cause.Error(),
		}
	}
	return got, nil
}

// loginFile says which way to log in the Secret has. One is enough, and of several nobody could tell which is meant.
func loginFile(dir string) (string, *broker.Error) {
	var found []string
	for _, name := range [...]string{fileUsername, fileToken, fileNKey, fileCredentials} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", &broker.Error{
			Reason: broker.ReasonNoCredentials,
			Detail: "create the Secret with username and password, or nats-token, or nkey, or user.creds",
		}
	default:
		return "", &broker.Error{
			Reason: broker.ReasonNoCredentials,
			Detail: "the Secret holds several logins (" + strings.Join(found, ", ") + "): keep one",
		}
	}
}

var errEmpty = errors.New("it is empty")

func userAndPassword(dir string) (natsgo.Option, error) {
	username, password, err := endpoint.Credentials(dir)
	if err != nil {
		return nil, errors.New("one of them cannot be read")
	}
	return natsgo.UserInfo(username, password), nil
}

func token(dir string) (natsgo.Option, error) {
	text, err := content(dir, fileToken)
	if err != nil {
		return nil, err
	}
	return natsgo.Token(text), nil
}

func nkey(dir string) (natsgo.Option, error) {
	seed, err := content(dir, fileNKey)
	if err != nil {
		return nil, err
	}
	public, sign, err := signer(seed)
	if err != nil {
		return nil, err
	}
	return natsgo.Nkey(public, sign), nil
}

func credentials(dir string) (natsgo.Option, error) {
	text, err := content(dir, fileCredentials)
	if err != nil {
		return nil, err
	}
	token, err := nkeys.ParseDecoratedJWT([]byte(text))
	if err != nil || !isToken(token) {
		return nil, errors.New("it holds no user's JWT")
	}
	pair, err := nkeys.ParseDecoratedNKey([]byte(text))
	if err != nil {
		return nil, errNoSeed
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, errNoSeed
	}
	_, sign, err := signer(string(seed))
	if err != nil {
		return nil, err
	}
	return natsgo.UserJWT(func() (string, error) { return token, nil }, sign), nil
}

// isToken says whether a text has the form of a JWT: the parser returns any text that it finds no better one in.
func isToken(text string) bool {
	const parts = 3
	return len(strings.Split(text, ".")) == parts && !strings.ContainsAny(text, " \t\r\n")
}

var errNoSeed = errors.New("it holds no seed of a user's NKey, which begins with SU")

// signer returns a user's public key, and what proves to have the private one.
func signer(seed string) (public string, sign natsgo.SignatureHandler, err error) {
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(seed)))
	if err != nil {
		return "", nil, errNoSeed
	}
	public, err = pair.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(public) {
		return "", nil, errNoSeed
	}
	return public, pair.Sign, nil
}

// content reads a file that says something.
func content(dir, name string) (string, error) {
	text, err := endpoint.ReadSecret(dir, name)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s cannot be read", name)
	case text == "":
		return "", errEmpty
	default:
		return text, nil
	}
}
