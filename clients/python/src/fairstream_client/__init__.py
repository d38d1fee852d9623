"""A typed client of the fairstream service."""

from fairstream_client.api import *
from fairstream_client.api import Client as Client
from fairstream_client.transport import ApiError as ApiError
