package nats

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/test/testkit"
)

// files writes files as the content of a Secret is mounted, and removes what was there before.
func files(t *testing.T, dir string, contents map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// jetStreamServer runs a server with the options and JetStream.
func jetStreamServer(t *testing.T, options natsserver.Options) string {
	t.Helper()
	options.Host, options.Port, options.NoSigs, options.NoLog = "127.0.0.1", -1, true, true
	options.JetStream, options.StoreDir = true, t.TempDir()
	s, err := natsserver.NewServer(&options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return s.Addr().String()
}

// pair is a new key pair of the kind, with its seed and public key.
func pair(t *testing.T, create func() (nkeys.KeyPair, error)) (keys nkeys.KeyPair, seed, public string) {
	t.Helper()
	keys, err := create()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := keys.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = keys.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return keys, string(secret), public
}

// operated are the options of a server that trusts an operator, whose one account has JetStream, and the account's keys.
func operated(t *testing.T) (natsserver.Options, nkeys.KeyPair) {
	t.Helper()
	operator, _, operatorID := pair(t, nkeys.CreateOperator)
	account, _, accountID := pair(t, nkeys.CreateAccount)
	_, _, systemID := pair(t, nkeys.CreateAccount)
	resolver := &natsserver.MemAccResolver{}
	for _, id := range []string{accountID, systemID} {
		claims := jwt.NewAccountClaims(id)
		if id == accountID {
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
				MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1,
			}
		}
		token, err := claims.Encode(operator)
		if err == nil {
			err = resolver.Store(id, token)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return natsserver.Options{
		TrustedOperators: []*jwt.OperatorClaims{jwt.NewOperatorClaims(operatorID)},
		AccountResolver:  resolver, SystemAccount: systemID,
	}, account
}

// credentialsFile is a user's, signed by the account. Zero expires never.
func credentialsFile(t *testing.T, account nkeys.KeyPair, expires time.Time) string {
	t.Helper()
	_, seed, id := pair(t, nkeys.CreateUser)
	claims := jwt.NewUserClaims(id)
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	token, err := claims.Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(token, []byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wantLogin checks that the wrong files are refused in one clear sentence that tells nothing of them, and that the right
// ones are taken as soon as they are there.
func wantLogin(t *testing.T, server string, wrong, right map[string]string, detail string) {
	t.Helper()
	log := testkit.NewLog(t)
	cfg := testConfig(server, "LOGINS")
	cfg.Topology, cfg.CredentialsDir, cfg.Log = Declare, t.TempDir(), log.Logger()
	files(t, cfg.CredentialsDir, wrong)
	conn := dial(t, cfg)
	p := newPublisher(t, conn, PublisherConfig{Subject: "logins.a"})
	state := waitState(t, conn, broker.ReasonAuthFailed)
	if !strings.HasSuffix(state.Detail, detail) {
		t.Errorf("%q, want it to end with %q", state.Detail, detail)
	}
	want(t, publish(t, p, keyed("k")...)[0], broker.Unavailable, broker.ReasonAuthFailed)

	files(t, cfg.CredentialsDir, right)
	eventually(t, p, keyed("k")[0], broker.Confirmed, "")
	for _, contents := range []map[string]string{wrong, right} {
		for name, secret := range contents {
			if name != fileUsername && strings.Contains(log.String()+state.Error(), secret) {
				t.Errorf("the content of %s shows: %s", name, log)
			}
		}
	}
}

func TestEachWayToLogIn(t *testing.T) {
	t.Parallel()
	t.Run("a user's name and password", func(t *testing.T) {
		t.Parallel()
		server := jetStreamServer(t, natsserver.Options{
			Users: []*natsserver.User{{Username: "app", Password: canary}},
		})
		wantLogin(t, server, map[string]string{"username": "app", "password": "old-" + canary},
			map[string]string{"username": "app", "password": canary}, "check the Secret's username and password")
	})
	t.Run("a token", func(t *testing.T) {
		t.Parallel()
		server := jetStreamServer(t, natsserver.Options{Authorization: canary})
		wantLogin(t, server, map[string]string{"nats-token": "old-" + canary},
			map[string]string{"nats-token": canary + "\n"}, "check the Secret's nats-token")
	})
	t.Run("an NKey", func(t *testing.T) {
		t.Parallel()
		_, seed, id := pair(t, nkeys.CreateUser)
		_, other, _ := pair(t, nkeys.CreateUser)
		server := jetStreamServer(t, natsserver.Options{Nkeys: []*natsserver.NkeyUser{{Nkey: id}}})
		wantLogin(t, server, map[string]string{"nkey": other}, map[string]string{"nkey": seed + "\n"},
			"check the Secret's nkey")
	})
	t.Run("a credentials file", func(t *testing.T) {
		t.Parallel()
		options, account := operated(t)
		stranger, _, _ := pair(t, nkeys.CreateAccount)
		wantLogin(t, jetStreamServer(t, options),
			map[string]string{"user.creds": credentialsFile(t, stranger, time.Time{})},
			map[string]string{"user.creds": credentialsFile(t, account, time.Time{})}, "check the Secret's user.creds")
	})
	t.Run("an expired credentials file", func(t *testing.T) {
		t.Parallel()
		options, account := operated(t)
		wantLogin(t, jetStreamServer(t, options),
			map[string]string{"user.creds": credentialsFile(t, account, time.Now().Add(-time.Minute))},
			map[string]string{"user.creds": credentialsFile(t, account, time.Time{})}, "check the Secret's user.creds")
	})
	t.Run("another way than the one before", func(t *testing.T) {
		t.Parallel()
		server := jetStreamServer(t, natsserver.Options{
			Users: []*natsserver.User{{Username: "app", Password: canary}},
		})
		wantLogin(t, server, map[string]string{"nats-token": canary},
			map[string]string{"username": "app", "password": canary}, "check the Secret's nats-token")
	})
	t.Run("an NKey where the server knows none", func(t *testing.T) {
		t.Parallel()
		_, seed, _ := pair(t, nkeys.CreateUser)
		wantLogin(t, jetStreamServer(t, natsserver.Options{Authorization: canary}), map[string]string{"nkey": seed},
			map[string]string{"nats-token": canary}, "takes no NKeys: configure it, or log in another way")
	})
}

// A JWT may end while the connection lives: the server cuts it, and the next file is used.
func TestCredentialsThatExpireAreReplaced(t *testing.T) {
	t.Parallel()
	options, account := operated(t)
	cfg := testConfig(jetStreamServer(t, options), "LOGINS")
	cfg.Topology, cfg.CredentialsDir = Declare, t.TempDir()
	files(t, cfg.CredentialsDir, map[string]string{
		"user.creds": credentialsFile(t, account, time.Now().Add(3*time.Second)),
	})
	conn := dial(t, cfg)
	p := newPublisher(t, conn, PublisherConfig{Subject: "logins.a"})
	_ = waitState(t, conn, broker.ReasonAuthFailed)
	want(t, publish(t, p, keyed("k")...)[0], broker.Unavailable, broker.ReasonAuthFailed)
	files(t, cfg.CredentialsDir, map[string]string{"user.creds": credentialsFile(t, account, time.Time{})})
	eventually(t, p, keyed("k")[0], broker.Confirmed, "")
}

func TestSecretsThatCannotLogIn(t *testing.T) {
	t.Parallel()
	_, accountSeed, _ := pair(t, nkeys.CreateAccount)
	_, seed, _ := pair(t, nkeys.CreateUser)
	account, _, _ := pair(t, nkeys.CreateAccount)
	whole := credentialsFile(t, account, time.Time{})
	tokenAlone, _, _ := strings.Cut(whole, "-----BEGIN USER NKEY SEED-----")
	cases := map[string]struct {
		contents map[string]string
		detail   string
	}{
		"no key at all": {nil, "create the Secret with username and password, or nats-token, or nkey, or user.creds"},
		"several logins": {
			map[string]string{"username": "app", "password": canary, "nats-token": canary},
			"the Secret holds several logins (username, nats-token): keep one",
		},
		"a user without a password": {
			map[string]string{"username": "app"}, "mend the Secret's username and password: one of them cannot be read",
		},
		"an empty token":    {map[string]string{"nats-token": "\n"}, "mend the Secret's nats-token: it is empty"},
		"an account's NKey": {map[string]string{"nkey": accountSeed}, "mend the Secret's nkey: " + errNoSeed.Error()},
		"no NKey":           {map[string]string{"nkey": canary}, "mend the Secret's nkey: " + errNoSeed.Error()},
		"a seed for a credentials file": {
			map[string]string{"user.creds": seed}, "mend the Secret's user.creds: it holds no user's JWT",
		},
		"a credentials file without its seed": {
			map[string]string{"user.creds": tokenAlone}, "mend the Secret's user.creds: " + errNoSeed.Error(),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files(t, dir, tc.contents)
			_, err := readLogin(dir)
			if err == nil || err.Reason != broker.ReasonNoCredentials || err.Detail != tc.detail {
				t.Errorf("readLogin() = %v, want %q", err, tc.detail)
			}
			for _, secret := range tc.contents {
				if err != nil && strings.Contains(err.Error(), strings.TrimSpace(secret)) &&
					len(secret) > len("app\n") {
					t.Errorf("a secret shows: %v", err)
				}
			}
		})
	}
}
