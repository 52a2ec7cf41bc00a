"""Reads ctest's JUnit report; prints the skipped tests, the failed ones, and "N passed, N failed, N skipped".

Exit code 1 where a test failed, could not run, or none ran.
"""

import re
import sys
import xml.etree.ElementTree as tree


def reason(case):
    """What GTEST_SKIP() or unittest's skipTest() said; empty where it said nothing."""
    output = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.+)|\.\.\. skipped ['\"](.+)['\"]", output)
    return (found.group(1) or found.group(2)).strip() if found else ""


def outcome(case):
    """ctest marks as "notrun" both what skipped itself and what could not be started; only the first has SKIP_... as message."""
    skipped = case.find("skipped")
    if case.get("status") == "run":
        return "passed"
    if skipped is not None and skipped.get("message", "").startswith("SKIP_"):
        return "skipped"
    return "failed"


def main(path):
    groups = {"passed": [], "failed": [], "skipped": []}
    for case in tree.parse(path).getroot().iter("testcase"):
        if case.get("status") != "disabled":
            groups[outcome(case)].append(case)
    for case in groups["skipped"]:
        why = reason(case)
        print(f"skipped: {case.get('name')}" + (f" ({why})" if why else ""))
    for case in groups["failed"]:
        print(f"failed: {case.get('name')}")
    print(", ".join(f"{len(cases)} {name}" for name, cases in groups.items()))
    return 1 if groups["failed"] or not groups["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
