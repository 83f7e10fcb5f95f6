"""The parts of scripts/prove_sources.py: what is read where, counted between the clients and a service.

    launcher ──► port A ─┐
                         ├─► counting ──► emulator of Google Cloud Storage (tests.cloud.emulator)
    workers  ──► port B ─┘

corpora                                       source files of a size, made once
counting, places                              bytes by client; buckets and clusters of workers on this machine
building                                      a build as a process with a home of its own, and what it left
launcher_share, relayed                       the sections
"""
