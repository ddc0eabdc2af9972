// A table that takes changed rows instead of all rows; see README.md, "Tables".
// Every text is put in by interpolation, so the browser shows it and never reads it as markup.
export default {
  template: `
    <div class="adb-table">
      <div class="adb-table-bar" v-if="filterable">
        <label>
          <span class="adb-small">{{ filterLabel }}</span>
          <input type="search" v-model="filter" spellcheck="false" autocomplete="off" :aria-controls="id">
        </label>
        <span class="adb-small" role="status">{{ said }}</span>
      </div>
      <div class="adb-scroll" tabindex="0" role="region" :aria-label="caption" :style="{ maxHeight: height }">
        <table :id="id" role="table">
          <caption class="adb-hidden">{{ caption }}</caption>
          <thead role="rowgroup">
            <tr role="row">
              <th v-for="c in columns" :key="c.name" scope="col" role="columnheader" :class="classes(c)" :aria-sort="sorted(c)">
                <button v-if="c.sort" type="button" @click="sortBy(c.name)">
                  {{ c.label }}<span aria-hidden="true" class="adb-arrow">{{ arrow(c) }}</span>
                </button>
                <span v-else :class="{ 'adb-hidden': c.kind === 'action' }">{{ c.label }}</span>
              </th>
            </tr>
          </thead>
          <tbody role="rowgroup">
            <tr v-for="row in visible" :key="row[0]" role="row" :class="row[1] && 'adb-row-' + row[1]">
              <td v-for="(c, n) in columns" :key="c.name" role="cell" :class="classes(c, row[n + 2])"
                :data-label="c.label">
                <template v-if="c.kind === 'action'">
                  <button v-if="row[n + 2]" type="button" class="adb-button"
                    :aria-label="row[n + 2] + ' ' + row[0]"
                    @click="$emit('act', { key: row[0], action: row[n + 2] })">{{ row[n + 2] }}</button>
                </template>
                <span v-else :style="indent(c, row[n + 2])" :class="tone(c, row[n + 2])" :title="row[n + 2]?.hint">
                  <a v-if="href(c, row[n + 2])" :href="href(c, row[n + 2])">{{ text(c, row[n + 2]) }}</a>
                  <template v-else>{{ text(c, row[n + 2]) }}</template>
                </span>
              </td>
            </tr>
          </tbody>
        </table>
        <p v-if="!visible.length" class="adb-empty">{{ order.length ? "No matching rows." : empty }}</p>
      </div>
    </div>`,
  props: {
    caption: String,
    columns: Array,
    first: Object, // what patch() takes, with all rows
    empty: String,
    filterable: Boolean,
    filterLabel: String,
    height: String,
  },
  emits: ["act"],
  data() {
    return { id: "t" + this.$.uid, order: [], rows: Object.create(null), now: 0, filter: "", by: null, falls: false };
  },
  created() {
    this.patch(this.first);
  },
  computed: {
    visible() {
      let rows = this.order.map((key) => this.rows[key]);
      const wanted = this.filter.trim().toLowerCase();
      if (wanted) {
        rows = rows.filter((row) =>
          this.columns.some((c, n) => String(this.text(c, row[n + 2])).toLowerCase().includes(wanted)),
        );
      }
      const by = this.columns.findIndex((c) => c.name === this.by);
      if (by >= 0) {
        const value = (row) => {
          const cell = row[by + 2];
          return (Array.isArray(cell) ? cell[0] : (cell?.sort ?? cell?.text ?? cell)) ?? "";
        };
        const sign = this.falls ? -1 : 1;
        rows = [...rows].sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
        });
      }
      return rows;
    },
    said() {
      return this.filter.trim() ? `${this.visible.length} of ${this.order.length} rows` : "";
    },
  },
  methods: {
    // A row is its key, its tone, then its cells in the order of the columns.
    patch({ put, drop, order, now }) {
      for (const key of drop) delete this.rows[key];
      for (const row of put) this.rows[row[0]] = Object.freeze(row);
      if (order) this.order = Object.freeze(order);
      if (now) this.now = now;
    },
    text(column, cell) {
      const value = cell?.text ?? cell;
      if (value === null || value === undefined || value === "") return "";
      if (column.kind === "transaction") return transaction(value);
      if (typeof value !== "number") return value;
      if (column.kind === "age") return duration(this.now - value);
      if (column.kind === "span") return duration(value);
      if (column.kind === "time") return clock(value);
      return value.toLocaleString("en");
    },
    href(column, cell) {
      if (column.kind !== "transaction") return cell?.href;
      const id = Array.isArray(cell) ? cell[0] : cell;
      return typeof id === "number" && id >= 0 ? `/transactions/${id}` : undefined;
    },
    indent(column, cell) {
      const level = column.kind === "transaction" && Array.isArray(cell) ? cell[2] : 0;
      return level ? { paddingLeft: `${Math.min(level, 12) * 1.1}rem` } : undefined;
    },
    tone(column, cell) {
      const tone = cell?.tone ?? column.tones[cell];
      return tone && `adb-badge adb-${tone}`;
    },
    classes: (column, cell) => ({
      "adb-number": column.align === "right",
      "adb-wide": column.wide,
      "adb-wrap": column.wrap,
      "adb-blank": cell === "" || cell === null || cell === undefined,
    }),
    sorted(column) {
      if (!column.sort) return undefined;
      return this.by !== column.name ? "none" : this.falls ? "descending" : "ascending";
    },
    arrow(column) {
      return this.by !== column.name ? "" : this.falls ? " ▾" : " ▴";
    },
    sortBy(name) {
      // The first click sorts, the second turns it round, the third gives the table's own order.
      if (this.by !== name) [this.by, this.falls] = [name, false];
      else if (!this.falls) this.falls = true;
      else this.by = null;
    },
  },
};

function transaction(cell) {
  const [id, name] = Array.isArray(cell) ? cell : [cell, ""];
  const number = id < 0 ? `server process ${-id}` : id;
  return name ? `${number} ${name}` : String(number);
}

function clock(seconds) {
  const at = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${time}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

function duration(seconds) {
  if (seconds < 0) return seconds > -1 ? "0 ms" : `−${duration(-seconds)}`; // clocks are not the same
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400).toLocaleString("en")} days`;
}
