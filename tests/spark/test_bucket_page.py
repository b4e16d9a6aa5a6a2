"""The tutorial about a bucket and a cluster, done as it says.

Method       The page's own blocks, with the reader's names replaced (NAMES), against a server of S3
             and SQS and a standalone cluster, all on loopback. No process of it knows the bucket
             or the password but from what the page makes: its file of variables.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from redis import AuthenticationError, Redis

from acceptance.pages import Shell, blocks
from conformance.factories import bucket_server
from spark.cluster import Cluster
from spark.lean import CLUSTER, clean_environment, without_secrets

pytestmark = pytest.mark.slow

PAGE = "docs/tutorials/bucket-and-cluster.md"
MASTER = "spark://10.0.0.7:7077"
PASSWORD = "correct horse"


@pytest.fixture
def endpoint() -> Iterator[str]:
    with bucket_server():
        endpoint = os.environ["AWS_ENDPOINT"]
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket-of-the-shop")
        yield endpoint


def names(endpoint: str, port: int) -> dict[str, str]:
    """What a reader has to replace, and nothing else."""
    return {
        "my-bucket": "bucket-of-the-shop",
        "my-key": "key",
        "my-secret-key": "secret",
        "my-password ": f"{PASSWORD!r} ",
        "eu-central-1": "us-east-1",
        "# export AWS_ENDPOINT_URL=https://my-minio:9000 ": (
            f"export AWS_ALLOW_HTTP=true AWS_ENDPOINT_URL={endpoint} "
        ),
        "https://sqs.us-east-1.amazonaws.com": endpoint,  # as it is printed
        "sqs.us-east-1.amazonaws.com": urlsplit(endpoint).netloc,
        "10.0.0.5:7379": f"127.0.0.1:{port}",
    }


def told(port: int) -> dict[str, dict[str, Any]]:
    """INFO spark: what reads and writes there were, by their source or target."""
    with Redis(port=port, password=PASSWORD, decode_responses=True) as redis:
        found = redis.info("spark").values()
    return {f"{each['kind']} {each['source']}": each for each in found if isinstance(each, dict)}


def test_what_the_page_says_holds_on_a_bucket_and_a_cluster(endpoint: str, tmp_path: Path) -> None:
    page, conf, cluster = tmp_path / "page", tmp_path / "conf", None
    page.mkdir()
    conf.mkdir()
    settings = "".join(f"{name} {value}\n" for name, value in CLUSTER.items())
    (conf / "spark-defaults.conf").write_text(settings)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    replaced = names(endpoint, port)
    environment = without_secrets(clean_environment()) | {"SPARK_CONF_DIR": str(conf)}
    try:
        with Shell(page, environment=environment, replaced=replaced) as shell:
            for block in blocks(PAGE):
                if MASTER in block.text and cluster is None:
                    # As the page says: the variables come to the workers by this file.
                    (conf / "spark-env.sh").write_text((page / "spark-env.sh").read_text())
                    cluster = Cluster(tmp_path, conf=conf)
                    replaced[MASTER] = cluster.master
                shell.follow(block, f"{PAGE}:{block.line}")
            progress = told(port)
            with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
                stranger.info("spark")
    finally:
        if cluster is not None:
            cluster.stop()
    read, wrote = progress["read stream orders"], progress["write stream large"]
    assert (read["rows"], wrote["rows"]) == (300_000, 60_000)
    # The executors read the bucket themselves: nothing of it came through the broker.
    assert read["brokered"] == 0
