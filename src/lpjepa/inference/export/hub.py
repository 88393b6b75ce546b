"""`--push`: an export to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from lpjepa.inference._optional import need


def check_repository(repository: str) -> None:
    """Complain before the export, not after it."""
    need("huggingface_hub")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"--push {repository}: a repository is named user/name.")


def push(folder: Path, repository: str, private: bool = False) -> str:
    """Upload the folder of an export as a model repository (made where there is none); its address."""
    check_repository(repository)
    hub = need("huggingface_hub")
    api = hub.HfApi()
    try:
        api.create_repo(repository, repo_type="model", private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=str(folder), repo_type="model", commit_message="Export of lpjepa"
        )
    except Exception as error:  # of many kinds: not logged in, no right to write, no network
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{folder} is complete, but {repository} did not take it ({reason}).") from None
    return str(getattr(commit, "commit_url", None) or repository)
