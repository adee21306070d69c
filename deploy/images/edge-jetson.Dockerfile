# The device's side on a Jetson AGX Orin, JetPack 6.2: TensorRT and CUDA are those of the base. Not run here.
#     docker build --file deploy/images/edge-jetson.Dockerfile .     on the device or with buildx for arm64
# BASE is NVIDIA's l4t-tensorrt; name the registry you take it from with --build-arg BASE=…
# Started with: docker run --runtime nvidia --network host -v memories:/srv/memories …
ARG BASE=l4t-tensorrt:r10.3.0-runtime

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv python3-libnvinfer \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 memories \
    && useradd --uid 10001 --gid 10001 --groups video --home-dir /srv/memories --create-home memories
WORKDIR /src
COPY . .
# JetPack's Python is 3.10, which the edge extra supports; TensorRT's bindings are the system's.
# onnxruntime's wheel for Jetson with CUDA and TensorRT replaces the plain one: --build-arg ONNXRUNTIME=URL.
ARG ONNXRUNTIME=""
RUN python3 -m venv --system-site-packages /app/python \
    && /app/python/bin/pip install --no-cache-dir ".[edge,serve]" \
    && if [ -n "${ONNXRUNTIME}" ]; then \
         /app/python/bin/pip uninstall --yes onnxruntime \
         && /app/python/bin/pip install --no-cache-dir "${ONNXRUNTIME}"; \
       fi \
    && rm -rf /src/*
ENV PATH=/app/python/bin:$PATH PYTHONUNBUFFERED=1 EDGE_CLIENT_BUNDLE=/srv/memories/bundle HOME=/srv/memories
USER 10001:10001
WORKDIR /srv/memories
VOLUME /srv/memories
STOPSIGNAL SIGINT
ENTRYPOINT ["edge-client"]
CMD ["doctor"]
