// Takes what has changed since the last look, and says when it is drawn; see README.md, rule 3.
// Messages come in the order of their numbers, also those that are sent again after a lost
// connection, as the framework does with its own.
export default {
  template: "<span hidden></span>",
  async mounted() {
    this.take = (message) => {
      if (message._id < window.nextMessageId) return;
      window.nextMessageId = message._id + 1;
      for (const [id, method, change] of message.changes) runMethod(id, method, [change]);
      this.$nextTick(() => this.$emit("taken", message.number));
    };
    await this.$nextTick(); // the socket is made when the whole page is mounted
    window.socket.on("activedb", this.take);
  },
  unmounted() {
    window.socket.off("activedb", this.take);
  },
  emits: ["taken"],
};
