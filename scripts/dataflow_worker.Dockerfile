# Worker image with everything installed: workers start in seconds, and need no package index.
#
#   Install the launcher's versions, because only equal versions give equal bytes:
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
# A worker with other versions than the launcher's fails with a message.
ARG PYTHON=3.11
ARG BEAM=2.77.0
FROM apache/beam_python${PYTHON}_sdk:${BEAM}

COPY dist/ /tmp/dist/
# The constraint keeps Beam at the launcher's version.
RUN BEAM="$(python -c 'import apache_beam; print(apache_beam.__version__)')" \
 && echo "apache-beam==$BEAM" > /tmp/constraints.txt \
 && pip install --no-cache-dir -c /tmp/constraints.txt -r /tmp/dist/worker-requirements.txt \
      /tmp/dist/prep*tfrecords-*.tar.gz \
 && python -c 'import sys, pipelines.prepare.runners.on_beam; assert "tensorflow" not in sys.modules' \
 && rm -rf /tmp/dist /tmp/constraints.txt

# Use the installed packages: don't make a virtual environment at each start.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ENTRYPOINT ["/opt/apache/beam/boot"]
