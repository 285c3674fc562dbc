"""What Ray may use of this machine for steps with `ray_options`: two flags of `dev` and `up`.

Both are for a local Ray; a cluster that is there has its own.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from ..engines.ray_options import check_ray_options
from ..runtime.errors import InvalidArgument

NumCpus = Annotated[
    int | None, typer.Option(min=1, help="CPUs for steps with ray_options; else the machine's.")
]
Resources = Annotated[
    str | None,
    typer.Option(help="More that this machine has for them, as JSON: '{\"fast_disk\": 1}'."),
]
_decoder = msgspec.json.Decoder(dict[str, float])


def of_machine(
    num_cpus: int | None, resources: str | None, embedded: bool, address: str | None = None
) -> dict[str, Any]:
    """The settings of a runtime that these flags ask for; `InvalidArgument` if it can't have any.

    >>> of_machine(4, '{"fast_disk": 1}', False)
    {'num_cpus': 4, 'resources': {'fast_disk': 1.0}}
    """
    given: dict[str, Any] = {}
    if num_cpus is not None:
        given["num_cpus"] = num_cpus
    if resources is not None:
        try:
            named = _decoder.decode(resources)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(
                f"--resources is not as expected: {error}. "
                "Right: --resources '{\"fast_disk\": 1}'."
            ) from None
        given["resources"] = check_ray_options({"resources": named}, "--resources")["resources"]
    if given and embedded:
        raise InvalidArgument(
            "with --embedded there is no Ray; leave --num-cpus and --resources out, or --embedded."
        )
    if given and address is not None:
        raise InvalidArgument(
            "the nodes of --ray-address have their own; leave --num-cpus and --resources out."
        )
    return given
