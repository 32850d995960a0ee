# SPDX-License-Identifier: MIT
# The server, and its tests, in a container. `make compose-images` prepares everything and builds; see
# docs/guide/compose.md. Nothing is fetched while it builds: the base image is one that the engine has, Python's packages
# lie in build/compose/wheels.
ARG BASE_IMAGE=agentbox/base

FROM ${BASE_IMAGE} AS runtime
RUN useradd --system --uid 989 --home-dir /var/lib/agentbox --no-create-home agentbox \
    && install -d -o agentbox -g agentbox -m 700 /var/lib/agentbox \
    && python3 -m venv --without-pip /opt/agentbox
COPY requirements/server.txt build/compose/wheels /opt/wheels/
# By the pip of the base: so none is in the environment of the server.
RUN python3 -m pip --python /opt/agentbox/bin/python install -q --no-cache-dir --no-index --find-links /opt/wheels \
    -c /opt/wheels/server.txt 'agentbox[server]'
COPY scripts/container-entry /usr/local/bin/container-entry
ENV PATH=/opt/agentbox/bin:$PATH AGENTBOX_STATE_DIR=/var/lib/agentbox AGENTBOX_HOST=0.0.0.0
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/container-entry"]
CMD ["agentbox", "serve"]

# Boxes are containers beside this one: the engine's socket and a directory of the host are lent to it.
FROM runtime AS runtime-docker
ENV AGENTBOX_SANDBOX_BACKEND=docker

FROM runtime AS test
COPY build/compose/test.txt build/compose/test-wheels /opt/test-wheels/
RUN PATH=${PATH#*:} python3 -m pip --python /opt/agentbox/bin/python install -q --no-cache-dir --no-compile --no-index \
    --find-links /opt/test-wheels -r /opt/test-wheels/test.txt
COPY . /src
WORKDIR /src
ENV PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["/usr/local/bin/container-entry", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider"]
CMD ["tests/unit"]
