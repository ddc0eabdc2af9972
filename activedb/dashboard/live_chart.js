// An ECharts chart in the colours of the page: of points over time, of which only new ones are
// sent (push), or of any options (draw). See README.md, "Charts".
import { echarts } from "nicegui-echart";

export default {
  template: `<div class="adb-chart" role="img" :aria-label="said"></div>`,
  props: { label: String, kind: String, series: Array, unit: String, pointsMax: Number, first: Object },
  data() {
    return { said: this.label };
  },
  created() {
    // Not in data(): what ECharts draws must not be watched by Vue.
    this.chart = null;
    this.points = [];
    this.options = {};
    this.drawn = 0;
  },
  async mounted() {
    await this.$nextTick();
    this.chart = echarts.init(this.$el, null, { renderer: "canvas" });
    this.chart.on("click", (e) => {
      if (e.data?.href?.startsWith("/")) window.location.assign(e.data.href);
    });
    this.sizes = new ResizeObserver(() => this.chart.resize());
    this.sizes.observe(this.$el);
    this.themes = new MutationObserver(() => this.redraw());
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    if (this.kind === "lines") this.push(this.first);
    else this.draw(this.first);
  },
  beforeUnmount() {
    this.themes?.disconnect();
    this.sizes?.disconnect();
    this.chart?.dispose();
  },
  methods: {
    push({ points, clear, said }) {
      if (clear) this.points = [];
      this.points.push(...points);
      if (this.points.length > this.pointsMax) this.points.splice(0, this.points.length - this.pointsMax);
      if (said) this.said = `${this.label}: ${said}`;
      if (!this.chart) return;
      if (!this.drawn) this.redraw();
      else this.chart.setOption({ series: this.lines() }, { lazyUpdate: true });
    },
    draw({ options, said }) {
      this.options = options;
      if (said) this.said = `${this.label}: ${said}`;
      if (this.chart) this.redraw();
    },
    redraw() {
      const theme = colours();
      const own = this.kind === "lines" ? this.frame(theme) : paint(this.options, theme);
      this.chart.setOption({ animation: false, textStyle: { color: theme.text }, ...own }, { notMerge: true });
      this.drawn += 1;
    },
    lines() {
      return this.series.map((one, n) => ({
        name: one.name,
        data: this.points.map((point) => [point[0] * 1000, point[n + 1]]),
      }));
    },
    frame(theme) {
      const unit = this.unit;
      const figure = (value) =>
        value === null || value === undefined
          ? "–"
          : `${value >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3))} ${unit}`;
      const axis = { axisLine: { lineStyle: { color: theme.line } }, axisLabel: { color: theme.text } };
      return {
        grid: { left: 8, right: 28, top: 36, bottom: 4, containLabel: true },
        legend: { top: 0, left: 0, textStyle: { color: theme.text }, itemWidth: 18, itemGap: 14 },
        tooltip: {
          trigger: "axis",
          valueFormatter: figure,
          backgroundColor: theme.surface,
          borderColor: theme.line,
          textStyle: { color: theme.text },
        },
        xAxis: {
          type: "time",
          ...axis,
          axisLabel: { color: theme.text, hideOverlap: true, formatter: "{HH}:{mm}:{ss}" },
          splitLine: { show: false },
        },
        yAxis: {
          type: "value",
          min: 0,
          ...axis,
          axisLabel: { color: theme.text, formatter: (value) => value.toLocaleString("en") },
          splitLine: { lineStyle: { color: theme.grid } },
        },
        series: this.lines().map((line, n) => ({
          ...line,
          type: "line",
          symbol: "none",
          lineStyle: { width: 2, color: theme[this.series[n].colour], type: this.series[n].dash || "solid" },
          itemStyle: { color: theme[this.series[n].colour] },
          emphasis: { disabled: true },
        })),
      };
    },
  },
};

function colours() {
  const style = getComputedStyle(document.body);
  const names = ["text", "line", "grid", "surface", "good", "bad", "warn", "accent", "other", "muted"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--adb-${name}`).trim()]));
}

// Options name colours of the page, as "bad"; here they become what they are in light or dark.
function paint(value, theme, key = "") {
  if (typeof value === "string") return /color$/i.test(key) ? (theme[value] ?? value) : value;
  if (Array.isArray(value)) return value.map((each) => paint(each, theme, key));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, paint(each, theme, name)]));
}
