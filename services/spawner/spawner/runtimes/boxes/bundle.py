"""The worker for boxes whose image lacks it; `sandherd image build` puts the same into an image."""

from sandherd.bundle import COMPILE, LABEL, WORKER, NoWorkerError, bundle, digest, make_bundle

__all__ = ["COMPILE", "LABEL", "WORKER", "NoWorkerError", "bundle", "digest", "make_bundle"]
