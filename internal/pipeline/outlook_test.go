package pipeline

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// P15: a holder is told when it has been there for long and many rows are dead, in words that stay as they are, until it is
// gone.
func TestWhatHoldsBackCleaningForLongIsTold(t *testing.T) {
	t.Parallel()
	holder := postgres.Holder{
		ID:     "7",
		What:   "a transaction of process 4711",
		Remedy: "SELECT pg_terminate_backend(4711)",
	}
	seen, now := postgres.Survey{Holders: []postgres.Holder{holder, {ID: "1"}}, DeadRows: manyDead}, noon
	var fails error
	o := &outlook{
		survey: func(context.Context) (postgres.Survey, error) { return seen, fails },
		now:    func() time.Time { return now },
	}
	told := func(after time.Duration) string {
		t.Helper()
		now = now.Add(after)
		o.look(t.Context())
		conditions := o.conditions()
		if len(conditions) == 0 {
			return ""
		}
		if c := conditions[0]; len(conditions) > 1 || c.Type != "VacuumBlocked" || c.Status != "True" {
			t.Fatalf("conditions %+v", conditions)
		}
		return conditions[0].Message
	}
	early := told(0)
	seen.Holders[1].ID = "2" // short transactions come and go
	if got := early + told(blockedAfter-time.Second); got != "" {
		t.Errorf("told too soon: %s", got)
	}
	words := told(time.Second)
	for _, part := range []string{"process 4711", "10m0s", "10000", holder.Remedy} {
		if !strings.Contains(words, part) {
			t.Errorf("%q lacks %q", words, part)
		}
	}
	seen.DeadRows *= 3
	if again := told(time.Hour); again != words {
		t.Errorf("the same cause has other words: %q, before %q", again, words)
	}
	fails = errors.New("no answer")
	if again := told(0); again != words {
		t.Errorf("a look that fails shows %q, want what was seen before", again)
	}
	fails = nil
	seen.Holders[0].ID = "8" // the same session with a newer snapshot, say
	if got := told(time.Minute) + told(blockedAfter-time.Second); got != "" {
		t.Errorf("another holder is told too soon: %s", got)
	}
	fails = errors.New("no answer")
	if got := told(time.Hour); got != "" {
		t.Errorf("told of what nobody has seen for long: %s", got)
	}
	fails = nil
	seen.DeadRows = manyDead - 1
	if got := told(time.Hour); got != "" {
		t.Errorf("told without many dead rows: %s", got)
	}
}

// certificate writes a PEM file of certificates that are valid for the given times around noon.
func certificate(t *testing.T, file string, lives ...[2]time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, life := range lives {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1),
			NotBefore:    noon.Add(-life[0]),
			NotAfter:     noon.Add(life[1]),
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	if err := os.WriteFile(file, all, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCertificatesThatExpireSoonAreTold(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	type life = [2]time.Duration // before and after noon
	lasting := life{day, 100 * day}
	for name, tc := range map[string]struct {
		authorities, client []life
		mode                string
		want                string
	}{
		"all last":                       {[]life{lasting}, []life{lasting}, config.TLSVerifyFull, ""},
		"a client's ends in two weeks":   {[]life{lasting}, []life{{300 * day, 13 * day}}, config.TLSVerifyFull, "tls.crt"},
		"a client's has ended":           {[]life{lasting}, []life{{300 * day, -day}}, config.TLSVerifyFull, "tls.crt"},
		"a short life, the most to come": {nil, []life{{time.Hour, 23 * time.Hour}}, config.TLSVerifyFull, ""},
		"a short life, nearly over":      {nil, []life{{23 * time.Hour, time.Hour}}, config.TLSVerifyFull, "tls.crt"},
		"the only authority ends":        {[]life{{300 * day, day}}, []life{lasting}, config.TLSVerifyFull, "ca.crt"},
		"one authority of two ends":      {[]life{{300 * day, day}, lasting}, nil, config.TLSVerifyFull, ""},
		"the sooner of two is told":      {[]life{{300 * day, 2 * day}}, []life{{300 * day, day}}, config.TLSVerifyFull, "tls.crt"},
		"plain text needs none":          {[]life{{300 * day, day}}, nil, config.TLSInsecure, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			secured := config.TLS{Mode: tc.mode}
			if tc.authorities != nil {
				secured.CAFile = filepath.Join(dir, "ca.crt")
				certificate(t, secured.CAFile, tc.authorities...)
			}
			if tc.client != nil {
				secured.ClientCertificateDir = dir
				certificate(t, filepath.Join(dir, "tls.crt"), tc.client...)
			}
			got := soonest(noon, config.TLS{Mode: config.TLSVerifyFull, CAFile: filepath.Join(dir, "none")}, secured)
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("told %q, want it to name %q", got, tc.want)
			}
		})
	}
}

// What is left out while nothing is wrong is left out.
func TestNothingIsToldOfADatabaseThatIsWell(t *testing.T) {
	t.Parallel()
	o := &outlook{
		survey: func(context.Context) (postgres.Survey, error) {
			return postgres.Survey{DeadRows: 1 << 40, Alone: true}, nil // a single host has no copy to lack anything
		},
		database: config.Postgres{Hosts: []string{"one"}},
		now:      time.Now,
	}
	o.look(t.Context())
	if got := o.conditions(); len(got) != 0 {
		t.Errorf("conditions %+v", got)
	}
}
