"""Administration of a deployment: provisioning, backup, images and toolchains."""
