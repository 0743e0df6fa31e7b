package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// clusterDomain ends the names of Services.
	clusterDomain = "cluster.local"
	// dnsBytes is the largest question that is read, and more than any has.
	dnsBytes = 1500
	// dnsSeconds is how long an answer may be kept.
	dnsSeconds = 5
)

// nameServer answers where Services are, by the API, and nothing else: there is no world outside.
type nameServer struct {
	services client.Reader
	conn     net.PacketConn
}

// startDNS serves until ctx ends.
func startDNS(ctx context.Context, address string, services client.Reader) error {
	var listen net.ListenConfig
	conn, err := listen.ListenPacket(ctx, "udp", net.JoinHostPort(address, "53"))
	if err != nil {
		return fmt.Errorf("listen for questions about names: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	go (&nameServer{services: services, conn: conn}).serve(ctx)
	return nil
}

func (s *nameServer) serve(ctx context.Context) {
	question := make([]byte, dnsBytes)
	for {
		n, from, err := s.conn.ReadFrom(question)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // one packet
		}
		go func(question []byte) {
			if answer, err := s.answer(ctx, question); err == nil {
				_, _ = s.conn.WriteTo(answer, from) // who asked asks again
			}
		}(append([]byte(nil), question[:n]...))
	}
}

// answer reads a question and packs what the API knows.
func (s *nameServer) answer(ctx context.Context, packet []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil {
		return nil, err
	}
	m.Response, m.Authoritative, m.RecursionAvailable = true, true, true
	m.Additionals = nil
	if len(m.Questions) != 1 {
		m.RCode = dnsmessage.RCodeFormatError
		return m.Pack()
	}
	q := m.Questions[0]
	address, err := s.lookUp(ctx, q.Name.String())
	switch {
	case apierrors.IsNotFound(err):
		m.RCode = dnsmessage.RCodeNameError
	case err != nil:
		m.RCode = dnsmessage.RCodeServerFailure
	case q.Type == dnsmessage.TypeA && address.Is4(): // others: the name is there, without such an address
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: dnsSeconds},
			Body:   &dnsmessage.AResource{A: address.As4()},
		}}
	}
	return m.Pack()
}

// lookUp returns the cluster's address of service.namespace.svc.cluster.local.
func (s *nameServer) lookUp(ctx context.Context, name string) (netip.Addr, error) {
	notFound := apierrors.NewNotFound(corev1.Resource("services"), name)
	rest, ok := strings.CutSuffix(strings.ToLower(name), ".svc."+clusterDomain+".")
	if !ok {
		return netip.Addr{}, notFound
	}
	service, namespace, ok := strings.Cut(rest, ".")
	if !ok || strings.Contains(namespace, ".") {
		return netip.Addr{}, notFound
	}
	var found corev1.Service
	if err := s.services.Get(ctx, client.ObjectKey{Namespace: namespace, Name: service}, &found); err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(found.Spec.ClusterIP)
}
