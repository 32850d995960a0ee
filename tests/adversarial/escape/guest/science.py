# SPDX-License-Identifier: MIT
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

matrix = np.random.default_rng(1).random((300, 300))
assert np.allclose(matrix @ np.linalg.inv(matrix), np.eye(300), atol=1e-6)
frame = pd.DataFrame({"group": list("aabb"), "value": [1, 2, 3, 4]})
assert frame.groupby("group")["value"].sum().to_dict() == {"a": 3, "b": 7}
frame.to_csv("frame.csv", index=False)
assert len(pd.read_csv("frame.csv")) == 4
plt.plot(np.sin(np.linspace(0, 6, 100)))
plt.savefig("plot.png")
print("works")
