FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.release=${VERSION}" -o /executor ./cmd/executor

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap ca-certificates git \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /executor /usr/local/bin/executor
ENV EXECUTOR_DATA_DIR=/var/lib/executor
VOLUME /var/lib/executor
ENTRYPOINT ["executor"]
CMD ["serve"]
