# The operator's image for those who build with a Dockerfile, from the repository's root:
#   docker build -f deploy/images/operator.Dockerfile -t lockstep.dev/operator:0.1.0 .
# `cargo xtask image` makes such an image without a daemon, the same bit for bit every time.
FROM rust:1.95-bookworm AS build
RUN rustup target add x86_64-unknown-linux-musl
WORKDIR /source
COPY . .
RUN cargo build --release --locked --target x86_64-unknown-linux-musl --package lockstep-controller

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /source/target/x86_64-unknown-linux-musl/release/lockstep-operator /usr/bin/lockstep-operator
USER 65532:65532
ENTRYPOINT ["/usr/bin/lockstep-operator"]
