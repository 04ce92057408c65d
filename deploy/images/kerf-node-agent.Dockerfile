# syntax=docker/dockerfile:1
# For those who build with Docker or BuildKit. `cargo xtask images` writes the same image without either; a test compares the two.
#
#   docker build --file deploy/images/kerf-node-agent.Dockerfile --tag kerf-node-agent:0.1.0 .
#
# Bases are named by tag: pin them by the digests of your own mirror.
FROM rust:1.95.0-bookworm AS build
# What the program says to --version.
ARG KERF_VERSION
WORKDIR /kerf
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/kerf/target \
    cargo build --locked --profile lean --package kerf-node-agent --bin kerf-node-agent && \
    install -D "target/lean/kerf-node-agent" /image/usr/bin/kerf-node-agent
# The CDI hook is copied to hosts of any distribution, so it is static.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/kerf/target \
    target="$(uname -m)-unknown-linux-musl" && rustup target add "$target" && \
    cargo build --locked --profile lean --target "$target" --package kerf-cdi-hook --bin kerf-cdi-hook && \
    install -D "target/$target/lean/kerf-cdi-hook" /image/usr/bin/kerf-cdi-hook
RUN install -D -m 644 LICENSE /image/usr/share/doc/kerf/LICENSE

# glibc of the same Debian that the program was linked on. The driver wants no more than GLIBC_2.9 of it.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /image/ /
ENV PATH=/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Where drivers are mounted (GKE), and where a container runtime puts libraries into images that it does not know.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib64
EXPOSE 9090
# Cutting GPUs, device files and other pods' cgroups are root's.
USER 0:0
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
      org.opencontainers.image.title="kerf node agent" \
      org.opencontainers.image.description="Cuts a node's GPUs into slices and serves them to the kubelet."
ENTRYPOINT ["/usr/bin/kerf-node-agent"]
