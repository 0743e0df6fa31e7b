# syntax=docker/dockerfile:1

# One image holds every command; a pod names the one it runs. It has no shell, no package manager and no
# root user, and works with a read-only root file system.

FROM --platform=$BUILDPLATFORM golang:1.26.10-bookworm AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV CGO_ENABLED=0
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath \
    -ldflags "-s -w -X github.com/postrider/postrider/internal/telemetry.version=${VERSION}" \
    -o /out/ ./cmd/manager ./cmd/relay ./cmd/consumer ./cmd/postrider

# Nothing but static binaries and the certificate authorities of the build image.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/manager /out/relay /out/consumer /out/postrider /usr/local/bin/
# A number, so that runAsNonRoot can be checked before the container starts.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/postrider"]
