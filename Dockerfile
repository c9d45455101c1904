# An image with library, headers and tool in /usr/local:
#
#   docker build -t gloo_rs .
#   docker run --rm gloo_rs gloo-rs bench allreduce
#
# What is done is in scripts/container.sh, so that it can be tested without Docker. Another image takes the same by
# `COPY --from=gloo_rs /usr/local /usr/local` and `RUN ldconfig`.

FROM debian:12 AS build
WORKDIR /gloo_rs
# Before the sources, which change more often.
COPY Cargo.toml ./
COPY scripts scripts
RUN scripts/container.sh rust
COPY . .
RUN scripts/container.sh install
RUN scripts/container.sh check

FROM debian:12-slim
COPY --from=build /usr/local /usr/local
RUN --mount=type=bind,source=scripts/container.sh,target=/tmp/container.sh bash /tmp/container.sh check
CMD ["gloo-rs", "info"]
