"""The CustomResourceDefinitions that the embedded world needs: of Kueue, KEDA, KubeRay, Cluster Autoscaler and
Open Cluster Management.

They are small on purpose: names, scope, subresources and columns are as in the originals, the schema holds the fields
that are used, and everything else is kept as it is. A cluster with the real ones does not need these.
"""

from importlib.resources import files
from typing import Any

import yaml

FILES = ("kueue.yaml", "keda.yaml", "ray.yaml", "autoscaling.yaml", "ocm.yaml")


def load() -> list[dict[str, Any]]:
    """The definitions, as objects to be applied."""
    texts = ((files(__name__) / name).read_text(encoding="utf-8") for name in FILES)
    documents = (document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader))
    return [item for document in documents for item in document.get("items", [document])]
