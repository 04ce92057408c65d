# syntax=docker/dockerfile:1
# For those who build with Docker or BuildKit. `cargo xtask images` writes the same image without either; a test compares the two.
#
#   docker build --file deploy/images/kerf-extender.Dockerfile --tag kerf-extender:0.1.0 .
#
# Bases are named by tag: pin them by the digests of your own mirror.
FROM rust:1.95.0-bookworm AS build
# What the program says to --version.
ARG KERF_VERSION
WORKDIR /kerf
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/kerf/target \
    target="$(uname -m)-unknown-linux-musl" && rustup target add "$target" && \
    export "CC_$(echo "$target" | tr - _)=cc" && \
    cargo build --locked --profile dist --target "$target" --package kerf-extender --bin kerf-extender && \
    install -D "target/$target/dist/kerf-extender" /image/usr/bin/kerf-extender
# The accounts of distroless images, and a folder for what is temporary.
RUN mkdir -p /image/etc && install -d -m 1777 /image/tmp && \
    printf 'root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' > /image/etc/passwd && \
    printf 'root:x:0:\nnonroot:x:65532:\n' > /image/etc/group
RUN install -D -m 644 LICENSE /image/usr/share/doc/kerf/LICENSE

FROM scratch
COPY --from=build /image/ /
ENV PATH=/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
EXPOSE 9444 9445 9090
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
      org.opencontainers.image.title="kerf extender" \
      org.opencontainers.image.description="Scheduler extender: filters, ranks and binds pods to slices of GPUs."
ENTRYPOINT ["/usr/bin/kerf-extender"]
