# The device's side on x86: client, chat app and bundle, without torch.
ARG BASE=debian:bookworm-20251117-slim

FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && groupadd --gid 10001 memories \
    && useradd --uid 10001 --gid 10001 --home-dir /srv/memories --create-home --shell /usr/sbin/nologin memories

FROM python AS build
# A compiler for the codec's decoder; it stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/app/python/bin:$PATH
WORKDIR /src
COPY . .
RUN python3 -m venv /app/python && pip install --constraint constraints.txt ".[edge,serve]"
RUN python3 -m venv /app/sbom && /app/sbom/bin/pip install "cyclonedx-bom>=7.5,<8" \
    && /app/sbom/bin/cyclonedx-py environment /app/python/bin/python --output-file /app/python/sbom.cdx.json \
    && pip uninstall --yes pip setuptools

FROM python
LABEL org.opencontainers.image.title="edge-client" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /app/python /app/python
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    EDGE_CLIENT_BUNDLE=/srv/memories/bundle HOME=/srv/memories
USER 10001:10001
WORKDIR /srv/memories
# The bundle comes from the service: edge-client pull --service HOST:7430
VOLUME /srv/memories
STOPSIGNAL SIGINT
ENTRYPOINT ["edge-client"]
CMD ["doctor"]
