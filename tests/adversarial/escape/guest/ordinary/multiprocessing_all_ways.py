# SPDX-License-Identifier: MIT
import concurrent.futures
import multiprocessing
from multiprocessing import shared_memory


def square(number):
    return number * number


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, range(6)) == [0, 1, 4, 9, 16, 25]
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["a"] = 1
        assert dict(shared) == {"a": 1}
    segment = shared_memory.SharedMemory(create=True, size=1 << 20)
    other = shared_memory.SharedMemory(segment.name)
    segment.buf[0] = 7
    assert other.buf[0] == 7
    other.close()
    segment.close()
    segment.unlink()
    lock, event, queue = multiprocessing.Lock(), multiprocessing.Event(), multiprocessing.Queue()
    with lock:
        event.set()
    queue.put(1)
    assert event.is_set() and queue.get(timeout=10) == 1
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        assert list(executor.map(square, range(4))) == [0, 1, 4, 9]
    print("works")
