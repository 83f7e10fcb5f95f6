# A worker image with everything installed: workers begin in seconds, and need no package index.
#
#   The versions are the launcher's, since it is with them that the bytes are the same:
#
#   PYTHON=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
#   BEAM=$(python -c 'import apache_beam; print(apache_beam.__version__)')
#   pip freeze --exclude-editable | grep -E '^(datasets|tokenizers|transformers|sentencepiece|tiktoken|fastokens|gigatoken)==' \
#     > dist/worker-requirements.txt
#   pip freeze | grep -E '^(array.record|fast.langdetect|ftfy)==' >> dist/worker-requirements.txt  # for these extras
#   python setup.py --quiet sdist
#   docker build -f scripts/dataflow_worker.Dockerfile --build-arg PYTHON=$PYTHON --build-arg BEAM=$BEAM -t IMAGE .
#   docker push IMAGE          IMAGE: REGION-docker.pkg.dev/PROJECT/REPOSITORY/prep-tfrecords:VERSION
#
#   prep-tfrecords build … -- --runner=DataflowRunner … --sdk_container_image=IMAGE --sdk_location=container
#
# A worker that has other versions than the launcher says so and makes nothing.
ARG PYTHON=3.11
ARG BEAM=2.77.0
FROM apache/beam_python${PYTHON}_sdk:${BEAM}

COPY dist/ /tmp/dist/
# The constraint keeps Beam what it is: its version has to be the launcher's.
RUN BEAM="$(python -c 'import apache_beam; print(apache_beam.__version__)')" \
 && echo "apache-beam==$BEAM" > /tmp/constraints.txt \
 && pip install --no-cache-dir -c /tmp/constraints.txt -r /tmp/dist/worker-requirements.txt \
      /tmp/dist/prep*tfrecords-*.tar.gz \
 && python -c 'import sys, pipelines.prepare.runners.on_beam; assert "tensorflow" not in sys.modules' \
 && rm -rf /tmp/dist /tmp/constraints.txt

# Packages are where Python looks for them already: no environment of its own for each start.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ENTRYPOINT ["/opt/apache/beam/boot"]
