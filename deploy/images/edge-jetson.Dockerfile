# The device's side on a Jetson AGX Orin, JetPack 6.2: TensorRT and CUDA are those of the base. Not run here.
#     docker build --file deploy/images/edge-jetson.Dockerfile .     on the device or with buildx for arm64
# BASE is NVIDIA's l4t-tensorrt; name the registry you take it from with --build-arg BASE=…
# Started with: docker run --runtime nvidia --network host -v memories:/srv/memories …
ARG BASE=l4t-tensorrt:r10.3.0-runtime

FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv python3-libnvinfer \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && groupadd --gid 10001 memories \
    && useradd --uid 10001 --gid 10001 --groups video --home-dir /srv/memories --create-home memories

FROM python AS build
# A compiler for the codec's decoder; it stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/app/python/bin:$PATH
WORKDIR /src
COPY . .
# JetPack's Python is 3.10, which the edge extra supports; TensorRT's bindings are the system's.
# onnxruntime's wheel for Jetson with CUDA and TensorRT replaces the plain one: --build-arg ONNXRUNTIME=URL.
ARG ONNXRUNTIME=""
RUN python3 -m venv --system-site-packages /app/python \
    && pip install ".[edge,serve]" \
    && if [ -n "${ONNXRUNTIME}" ]; then pip uninstall --yes onnxruntime && pip install "${ONNXRUNTIME}"; fi
RUN python3 -m venv /app/sbom && /app/sbom/bin/pip install "cyclonedx-bom>=7.5,<8" \
    && /app/sbom/bin/cyclonedx-py environment /app/python/bin/python --output-file /app/python/sbom.cdx.json \
    && pip uninstall --yes pip setuptools

FROM python
LABEL org.opencontainers.image.title="edge-client" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /app/python /app/python
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 EDGE_CLIENT_BUNDLE=/srv/memories/bundle HOME=/srv/memories
USER 10001:10001
WORKDIR /srv/memories
VOLUME /srv/memories
STOPSIGNAL SIGINT
ENTRYPOINT ["edge-client"]
CMD ["doctor"]
