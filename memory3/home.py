"""The user's folders for what programs keep, as the system has them."""

from pathlib import Path
from typing import Literal

import platformdirs

from memory3.errors import InvalidInput


def users_folder(kind: Literal["data", "state", "cache"], program: str) -> Path:
    """On Linux XDG_DATA_HOME and its like, by default under ~/.local; raises InvalidInput for a user without a home."""
    try:
        return Path(getattr(platformdirs, f"user_{kind}_path")(program, appauthor=False))
    except RuntimeError as error:
        raise InvalidInput(
            f"this user has no home folder, in which the program keeps its {kind}: set HOME, or XDG_{kind.upper()}_HOME"
        ) from error
