"""What every contract is made of."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A model whose validator is built when it is first used: a program knows all contracts, and speaks a few."""

    model_config = ConfigDict(defer_build=True)
