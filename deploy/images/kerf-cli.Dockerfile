# syntax=docker/dockerfile:1
# For those who build with Docker or BuildKit. `cargo xtask images` writes the same image without either; a test compares the two.
#
#   docker build --file deploy/images/kerf-cli.Dockerfile --tag kerf-cli:0.1.0 .
#
# Bases are named by tag: pin them by the digests of your own mirror.
FROM rust:1.95.0-bookworm AS build
# What the program says to --version.
ARG KERF_VERSION
WORKDIR /kerf
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/kerf/target \
    cargo build --locked --profile dist --package kerf --bin kerf && \
    install -D "target/dist/kerf" /image/usr/bin/kerf
RUN ln -s kerf /image/usr/bin/kubectl-kerf
RUN install -D -m 644 LICENSE /image/usr/share/doc/kerf/LICENSE

# glibc of the same Debian that the program was linked on. The driver wants no more than GLIBC_2.9 of it.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /image/ /
ENV PATH=/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Where drivers are mounted (GKE), and where a container runtime puts libraries into images that it does not know.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib64
USER 65532:65532
WORKDIR /
# The release sets them by --build-arg.
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.source=$SOURCE \
      org.opencontainers.image.created=$CREATED \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.title="kerf" \
      org.opencontainers.image.description="kerf on the command line, also as kubectl-kerf."
ENTRYPOINT ["/usr/bin/kerf"]
