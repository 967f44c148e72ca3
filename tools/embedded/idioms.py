"""Code templates about one record type: ``$record`` of ``$records``, its fields by name."""

PYTHON_CLASS = '''\
@dataclass
class $Type:
    """One $record of the list."""

$fields'''
PYTHON = (
    '''\
def total_$number($records: list[$Type]) -> float:
    """Return the sum of $number over all $records."""
    return sum($record.$number for $record in $records)''',
    """\
def ${records}_by_$text($records: list[$Type]) -> dict[str, list[$Type]]:
    result: dict[str, list[$Type]] = {}
    for $record in $records:
        result.setdefault($record.$text, []).append($record)
    return result""",
    """\
def large_$records($records: list[$Type], limit: float = $bound) -> list[$Type]:
    return [$record for $record in $records if $record.$number > limit]""",
)
PYTHON_MAIN = """\
def main() -> None:
    $records = [
$rows
    ]
    print(total_$number($records))
    for $text, group in ${records}_by_$text($records).items():
        print($text, len(group))"""

JAVASCRIPT = (
    """\
export function $total($records) {
  return $records.reduce((sum, $record) => sum + $record.$number, 0);
}""",
    """\
export async function $load(url) {
  const response = await fetch(url);
  if (!response.ok) {
    throw new Error(`cannot load $records: $${response.status}`);
  }
  const $records = await response.json();
  return $records.filter(($record) => $record.$number > $bound);
}""",
    """\
const by$Text = new Map();
for (const $record of $records) {
  const list = by$Text.get($record.$text) ?? [];
  list.push($record);
  by$Text.set($record.$text, list);
}""",
    """\
class $Type {
  constructor($names) {
$fields  }

  toString() {
    return `$${this.$text}: $${this.$number}`;
  }
}""",
)

C_HEAD = """\
#include <stdio.h>

$struct {
$fields
};"""
C = (
    """\
double sum_$number(const $struct *$records, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += $records[i].$number;
    }
    return sum;
}""",
    """\
int largest_$number(const $struct *$records, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        if ($records[i].$number > $records[best].$number) {
            best = i;
        }
    }
    return best;
}""",
    """\
void print_$record(const $struct *$record) {
    printf("%s %g\\n", $record->$text, (double)$record->$number);
}""",
)

SQL_HEAD = """\
CREATE TABLE $records (
    id INTEGER PRIMARY KEY,
$fields
);

INSERT INTO $records ($names) VALUES
$rows;"""
SQL = (
    """\
SELECT $text, COUNT(*) AS n, SUM($number) AS total_$number
FROM $records
GROUP BY $text
HAVING SUM($number) > $bound
ORDER BY total_$number DESC;""",
    """\
UPDATE $records
SET $number = $number + $change
WHERE $text = '$who';""",
    """\
SELECT $names
FROM $records
WHERE $number BETWEEN $bound AND $upper
ORDER BY $text
LIMIT $most;""",
    "CREATE INDEX ${records}_$text ON $records ($text);",
    "DELETE FROM $records WHERE $number < $bound;",
)
