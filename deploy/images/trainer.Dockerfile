# The trainer's image for those who build with a Dockerfile, from the repository's root:
#   docker build -f deploy/images/trainer.Dockerfile -t lockstep.dev/trainer:0.1.0 .
# `cargo xtask image` makes such an image without a daemon, the same bit for bit every time.
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package lockstep-worker

# Linked with glibc: the libraries of a GPU are loaded at run time and want the same.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/release/lockstep-trainer /usr/bin/lockstep-trainer
USER 65532:65532
ENTRYPOINT ["/usr/bin/lockstep-trainer"]
