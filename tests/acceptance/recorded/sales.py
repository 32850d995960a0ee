# SPDX-License-Identifier: MIT
"""A table in, a report out: csv, json, statistics."""

import collections
import csv
import datetime
import json
import statistics

with open("data/sales.csv", newline="") as file:
    rows = list(csv.DictReader(file))
by_city = collections.defaultdict(list)
for row in rows:
    by_city[row["city"]].append(float(row["amount"]))
report = {
    "made": datetime.datetime.now().isoformat(timespec="seconds"),
    "rows": len(rows),
    "cities": {
        city: {"sum": sum(amounts), "mean": statistics.fmean(amounts), "deviation": statistics.pstdev(amounts)}
        for city, amounts in sorted(by_city.items())
    },
}
with open("out/report.json", "w") as file:
    json.dump(report, file, indent=2)
with open("out/cities.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["city", "sum"])
    writer.writerows((city, facts["sum"]) for city, facts in report["cities"].items())
print(json.dumps(json.load(open("out/report.json")), sort_keys=True))
