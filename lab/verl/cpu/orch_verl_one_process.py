"""verl 0.9.1 in one process: Ray's actors as objects, TransferQueue as a dictionary.

Each process of verl costs half a minute of
imports on one core, and `main_ppo` starts nine. Here `ray` and `transfer_queue` keep their names
and signatures, and call what they are given in this process: methods at once, coroutines on one
event loop in a thread. The worker group that verl builds over Ray is an object with one worker. The
trainer's loop, dataloader, replay buffer, agent loop, reward loop, workers and checkpoints are
verl's.

Import it before anything of verl's that imports ray. It runs only in verl's environment.
"""

import asyncio
import copy
import inspect
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import ray
import torch
import transfer_queue
from tensordict import NonTensorData, TensorDict
from transfer_queue import KVBatchMeta

_LOOP = asyncio.new_event_loop()
_NAMED: dict[str, "Actor"] = {}


class Ref:
    """A result, as ray.ObjectRef: `await` it or `ray.get` it."""

    def __init__(self, future: "Future[Any]"):
        self.future = future

    def __await__(self) -> Iterator[Any]:
        return asyncio.wrap_future(self.future).__await__()


def _settled(call: Callable[[], Any]) -> Ref:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
    return Ref(future)


def _on_loop(coroutine: Coroutine[Any, Any, Any]) -> Ref:
    return Ref(asyncio.run_coroutine_threadsafe(coroutine, _LOOP))


class Method:
    """A method of an actor: `.remote(...)` calls it."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def options(self, **_: Any) -> "Method":
        return self

    def remote(self, *args: Any, **named: Any) -> Ref:
        if inspect.iscoroutinefunction(self.function):
            return _on_loop(self.function(*args, **named))
        return _settled(lambda: self.function(*args, **named))


class Actor:
    """An actor's handle, with the object itself."""

    def __init__(self, instance: Any):
        self.instance = instance

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self.instance, name))


class Remote:
    """What `ray.remote` makes of a class or a function."""

    def __init__(self, target: Callable[..., Any], name: str | None = None):
        self.target, self.name = target, name

    def options(self, name: str | None = None, **_: Any) -> "Remote":
        return Remote(self.target, name)

    def remote(self, *args: Any, **named: Any) -> Any:
        if not inspect.isclass(self.target):
            return Method(self.target).remote(*args, **named)
        actor = Actor(self._made(*args, **named))
        if self.name is not None:
            _NAMED[self.name] = actor
        return actor

    def _made(self, *args: Any, **named: Any) -> Any:
        """Make the object; on the loop if it has coroutines, because it may keep its loop."""
        methods = inspect.getmembers(self.target, inspect.iscoroutinefunction)
        # On the loop's own thread, waiting for the loop would never end.
        if not methods or threading.current_thread() is _THREAD:
            return self.target(*args, **named)

        async def make() -> Any:
            return self.target(*args, **named)

        return _on_loop(make()).future.result()


def remote(*args: Any, **options: Any) -> Any:
    """Stand for ray.remote, with and without options."""
    if len(args) == 1 and not options:
        return Remote(args[0])
    return Remote


def get(refs: Any, **_: Any) -> Any:
    """Stand for ray.get."""
    if isinstance(refs, Ref):
        return refs.future.result()
    return [get(ref) for ref in refs]


def get_actor(name: str, **_: Any) -> Actor:
    """Stand for ray.get_actor. Raise ValueError, as Ray does, for an unknown name."""
    if name not in _NAMED:
        raise ValueError(f"no actor is called {name}")
    return _NAMED[name]


class Queue:
    """TransferQueue: rows of fields and a tag for each key of a partition."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self.tags: dict[str, dict[str, dict[str, Any]]] = {}
        self.lock = threading.RLock()

    def put(
        self,
        keys: Sequence[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: Sequence[dict[str, Any]] | None = None,
        **_: Any,
    ) -> KVBatchMeta:
        with self.lock:
            known = self.tags.setdefault(partition_id, {})
            rows = self.rows.setdefault(partition_id, {})
            for i, key in enumerate(keys):
                known.setdefault(key, {}).update(tags[i] if tags else {})
                rows.setdefault(key, {})
            for name in fields.keys() if fields is not None else ():
                for key, value in zip(keys, _rows(fields, name, len(keys)), strict=True):
                    rows[key][name] = value
            return KVBatchMeta(
                partition_id=partition_id,
                keys=list(keys),
                tags=[copy.copy(known[key]) for key in keys],
            )

    def get(
        self,
        keys: Sequence[str] | str,
        partition_id: str,
        select_fields: Sequence[str] | str | None = None,
    ) -> TensorDict:
        keys = [keys] if isinstance(keys, str) else list(keys)
        select_fields = [select_fields] if isinstance(select_fields, str) else select_fields
        with self.lock:
            rows = [self.rows[partition_id][key] for key in keys]
        names = [name for name in (select_fields or rows[0]) if name in rows[0]]
        return _table({name: [row[name] for row in rows] for name in names}, len(keys))

    def list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        with self.lock:
            chosen = self.tags if partition_id is None else {partition_id: self.tags[partition_id]}
            # Over Ray a caller gets a copy of its own.
            return copy.deepcopy({name: tags for name, tags in chosen.items() if tags})

    def clear(self, keys: Sequence[str] | str, partition_id: str) -> None:
        with self.lock:
            for key in [keys] if isinstance(keys, str) else keys:
                self.tags.get(partition_id, {}).pop(key, None)
                self.rows.get(partition_id, {}).pop(key, None)


def _rows(fields: TensorDict, name: str, count: int) -> list[Any]:
    value = fields.get(name)
    if isinstance(value, torch.Tensor):
        return list(value.unbind(0))
    if isinstance(value, NonTensorData):
        return [value.data] * count
    stacked = (value[i] for i in range(count))
    return [each.data if isinstance(each, NonTensorData) else each for each in stacked]


def _table(columns: Mapping[str, list[Any]], count: int) -> TensorDict:
    """Return rows as verl expects them: ragged tensors, and stacks of everything else."""
    from verl.utils import tensordict_utils

    tensors = {
        name: torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        if rows[0].dim()
        else torch.stack(rows)
        for name, rows in columns.items()
        if isinstance(rows[0], torch.Tensor)
    }
    table = TensorDict(tensors, batch_size=count)
    for name, rows in columns.items():
        if name not in tensors:
            tensordict_utils.assign_non_tensor_stack(table, name, rows)
    return table


QUEUE = Queue()


class WorkerGroup:
    """verl's RayWorkerGroup with one worker, which is an object in this process."""

    def __init__(self, ray_cls_with_init: Mapping[str, Any], **_: Any):
        os.environ.update(
            RANK="0",
            WORLD_SIZE="1",
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            RAY_LOCAL_WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(_free_port()),
        )
        self.classes = ray_cls_with_init

    def spawn(self, **_: Any) -> dict[str, "Role"]:
        """Return the workers by role."""
        return {
            role: Role(cls.cls.target(*cls.args, **cls.kwargs))
            for role, cls in self.classes.items()
        }


class Role:
    """A role of the worker group. Its methods take a batch's keys and give the worker the data."""

    world_size = 1

    def __init__(self, worker: Any):
        self.worker, self.workers = worker, [Actor(worker)]
        self._dispatch_info = {"actor": [0], "ref": [0]}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.worker, name)

        def call(*args: Any, **named: Any) -> Any:
            if inspect.iscoroutinefunction(function):
                return [_on_loop(function(*args, **named))]
            meta = next((arg for arg in args if isinstance(arg, KVBatchMeta)), None)
            if meta is None:
                return [function(*args, **named)]
            return self._on_data(function, meta)

        return call

    def _on_data(self, function: Callable[..., Any], meta: KVBatchMeta) -> Any:
        from verl.utils import tensordict_utils

        data = QUEUE.get(meta.keys, meta.partition_id)
        # The same: the worker may change what it is given.
        tensordict_utils.assign_non_tensor(data, **copy.deepcopy(meta.extra_info))
        output = function(data)
        if not output.batch_size:
            return output
        tensors = output.select(*[k for k, v in output.items() if isinstance(v, torch.Tensor)])
        return QUEUE.put(meta.keys, meta.partition_id, tensors)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def install() -> None:
    """Replace what ray and transfer_queue offer, and verl's worker group over Ray."""
    ray.remote, ray.get, ray.get_actor = remote, get, get_actor
    ray.init, ray.is_initialized, ray.shutdown = lambda **_: None, lambda: False, lambda: None
    ray.put = lambda value: _settled(lambda: value)
    ray.nodes = lambda: [{"NodeID": "0" * 56, "Alive": True, "Resources": {"CPU": 1, "GPU": 1}}]

    async def put_one(
        key: str,
        partition_id: str,
        fields: TensorDict | None = None,
        tag: dict[str, Any] | None = None,
    ) -> KVBatchMeta:
        return QUEUE.put([key], partition_id, fields, [tag or {}])

    async def put_many(**named: Any) -> KVBatchMeta:
        return QUEUE.put(**named)

    queue = transfer_queue
    queue.init, queue.close = lambda *_: install_worker_group(), lambda: None
    queue.kv_batch_put, queue.kv_batch_get = QUEUE.put, QUEUE.get
    queue.kv_list, queue.kv_clear = QUEUE.list, QUEUE.clear
    queue.async_kv_put, queue.async_kv_batch_put = put_one, put_many


def install_worker_group() -> None:
    """Replace the worker group that verl's trainer makes. Called as soon as it is imported."""
    from verl.single_controller.ray.base import ResourcePoolManager
    from verl.trainer.ppo.v1 import trainer_base

    trainer_base.RayWorkerGroup = WorkerGroup
    trainer_base.create_colocated_worker_cls = lambda class_dict: class_dict
    ResourcePoolManager._check_resource_available = lambda _: None  # noqa: SLF001  it asks Ray's own process


_THREAD = threading.Thread(target=_LOOP.run_forever, name="actors", daemon=True)
_THREAD.start()
install()
